package io.weir.flink;

import io.weir.flink.errors.InvalidArgumentException;
import io.weir.flink.errors.StoreUnavailableException;
import io.weir.flink.nativelib.OwnedFiles;

import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.CoreOptions;
import org.apache.flink.configuration.IllegalConfigurationException;
import org.apache.flink.core.fs.Path;
import org.apache.flink.runtime.execution.Environment;
import org.apache.flink.runtime.state.CheckpointStorageAccess;
import org.apache.flink.runtime.state.filesystem.FsCheckpointStorageAccess;
import org.apache.flink.util.FileUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Locale;

/**
 * Where the store of a job lies, as a URI that the native library takes: a directory, or a database
 * of Fluss.
 *
 * <p>A job without checkpoints and without a directory keeps its rows under the worker's temporary
 * directories, as a local state backend does; that directory goes with the backend.
 */
public final class StoreDirectory {

    private static final Logger LOG = LoggerFactory.getLogger(StoreDirectory.class);

    /** The scheme of a root that is a database of Fluss. */
    static final String FLUSS = "fluss";

    private static final String UNDER_CHECKPOINTS = "weir";
    private static final String TEMPORARY = "weir-store-";

    private final String uri;
    private final boolean explicit;
    private final java.nio.file.Path temporary;

    private StoreDirectory(String uri, boolean explicit, java.nio.file.Path temporary) {
        this.uri = uri;
        this.explicit = explicit;
        this.temporary = temporary;
    }

    public String uri() {
        return uri;
    }

    /** Whether it lives no longer than the backend, so that no checkpoint can refer to it. */
    public boolean isTemporary() {
        return temporary != null;
    }

    /**
     * Where a backend goes on whose checkpoint's rows lie in {@code restored}. New branches lie
     * beside what they start from, so a directory that moved is refused where the user named it.
     * Servers may have other names than before: whether it is the same cluster shows when the
     * checkpoint's versions are looked for.
     *
     * @throws InvalidArgumentException if it is of another store, directory or database
     */
    public String toGoOnFrom(String restored) throws InvalidArgumentException {
        if (restored.equals(uri)) {
            return uri;
        }
        String store = store(restored);
        if (!store.equals(store(uri))) {
            throw new InvalidArgumentException(
                    String.format(
                            "The checkpoint's rows lie in %s, but %s is '%s' (%s). Only the store"
                                    + " that wrote a checkpoint can restore it: set the option to"
                                    + " '%s', or go over by a canonical savepoint.",
                            restored, WeirOptions.STORE.key(), store(uri), uri, store));
        }
        if (uri.startsWith(FLUSS + ":")) {
            String database = restored.substring(restored.lastIndexOf('/') + 1);
            if (!uri.endsWith("/" + database)) {
                throw elsewhere(restored, WeirOptions.FLUSS_DATABASE.key());
            }
            LOG.info("The checkpoint names {}; the job goes on at {}.", restored, uri);
            return uri;
        }
        if (explicit) {
            throw elsewhere(restored, WeirOptions.DIRECTORY.key());
        }
        LOG.warn(
                "The checkpoint's rows lie in {} rather than under the checkpoint directory, in {}:"
                        + " the job goes on there.",
                restored,
                uri);
        return restored;
    }

    private InvalidArgumentException elsewhere(String restored, String option) {
        return new InvalidArgumentException(
                String.format(
                        "The checkpoint's rows lie in %s, but by %s it is %s. Set it to the"
                                + " former.",
                        restored, option, uri));
    }

    /** The value of {@link WeirOptions#STORE} for a root. */
    private static String store(String root) {
        String scheme = root.substring(0, root.indexOf(':'));
        return scheme.equals("file") ? "embedded" : scheme;
    }

    /** Removes a temporary directory with what is in it; others stay. */
    void remove() {
        if (temporary != null) {
            FileUtils.deleteDirectoryQuietly(temporary.toFile());
        }
    }

    /**
     * Refuses what can be seen to be wrong without a look at any disk: for the JobManager, before
     * the job starts.
     *
     * @throws IllegalConfigurationException if the directory is relative or of a scheme that cannot
     *     be reached, or if there is none although checkpoints are configured
     */
    static void check(WeirConfig config) {
        if (config.store() == WeirOptions.Store.MEMORY) {
            inMemory(config.directory());
        } else if (config.store() == WeirOptions.Store.FLUSS) {
            // Needs no directory.
            return;
        } else if (config.directory() != null) {
            toUri(config.directory(), WeirOptions.DIRECTORY.key());
        } else if (config.checkpointDirectory() != null) {
            toUri(config.checkpointDirectory(), CheckpointingOptions.CHECKPOINTS_DIRECTORY.key());
        } else if (config.checkpointing()) {
            throw noDirectory();
        }
    }

    private static IllegalConfigurationException noDirectory() {
        return new IllegalConfigurationException(
                String.format(
                        "Weir needs a directory that outlives the worker: checkpoints are"
                                + " configured, and without a directory they go to the"
                                + " JobManager's memory. Set %s, or %s.",
                        CheckpointingOptions.CHECKPOINTS_DIRECTORY.key(),
                        WeirOptions.DIRECTORY.key()));
    }

    /**
     * Finds the directory and makes sure that it can be written.
     *
     * @param temporaryDirectories for a job that needs nothing kept, tried in order
     * @throws IllegalConfigurationException if there is none, or its scheme cannot be reached
     * @throws StoreUnavailableException naming the directory, if it cannot be made or written
     */
    static StoreDirectory resolve(
            WeirConfig config, Environment environment, String[] temporaryDirectories)
            throws IOException {
        if (config.store() == WeirOptions.Store.MEMORY) {
            return inMemory(config.directory());
        }
        if (config.store() == WeirOptions.Store.FLUSS) {
            String root = FLUSS + "://" + config.flussServers() + "/" + config.flussDatabase();
            return new StoreDirectory(root, true, null);
        }
        boolean explicit = config.directory() != null;
        String option =
                explicit
                        ? WeirOptions.DIRECTORY.key()
                        : CheckpointingOptions.CHECKPOINTS_DIRECTORY.key();
        String base = explicit ? config.directory() : checkpointDirectory(config, environment);
        if (base == null) {
            if (config.checkpointing()) {
                throw noDirectory();
            }
            return temporary(temporaryDirectories);
        }
        URI directory = toUri(base, option);
        String path = directory.getPath();
        if (!explicit) {
            path = (path.endsWith("/") ? path : path + "/") + UNDER_CHECKPOINTS;
        } else if (path.length() > 1 && path.endsWith("/")) {
            path = path.substring(0, path.length() - 1);
        }
        makeWritable(path, option);
        return new StoreDirectory(fileUri(path), explicit, null);
    }

    private static StoreDirectory temporary(String[] temporaryDirectories) throws IOException {
        StoreUnavailableException failure = null;
        for (String directory : temporaryDirectories) {
            java.nio.file.Path home = Paths.get(directory).toAbsolutePath();
            java.nio.file.Path path = OwnedFiles.newPath(home, TEMPORARY, "");
            try {
                makeWritable(path.toString(), CoreOptions.TMP_DIRS.key());
                OwnedFiles.removeLeftovers(home, TEMPORARY);
                return new StoreDirectory(fileUri(path.toString()), false, path);
            } catch (StoreUnavailableException e) {
                failure = e;
            }
        }
        if (failure == null) {
            throw noDirectory();
        }
        throw failure;
    }

    private static StoreDirectory inMemory(String directory) {
        String name = directory == null ? "memory://default" : directory;
        if (!name.matches("memory://[A-Za-z0-9._-]+")) {
            throw new IllegalConfigurationException(
                    String.format(
                            "%s: '%s' is not allowed. With the memory store it is memory://NAME.",
                            WeirOptions.DIRECTORY.key(), name));
        }
        return new StoreDirectory(name, true, null);
    }

    /** From the configuration; else from the storage in use, which a program may have set. */
    private static String checkpointDirectory(WeirConfig config, Environment environment) {
        if (config.checkpointDirectory() != null) {
            return config.checkpointDirectory();
        }
        CheckpointStorageAccess storage = storage(environment);
        if (!(storage instanceof FsCheckpointStorageAccess)) {
            return null;
        }
        Path ofJob = ((FsCheckpointStorageAccess) storage).getCheckpointsDirectory();
        boolean hasOwnDirectory = ofJob.getName().equals(environment.getJobID().toString());
        return (hasOwnDirectory ? ofJob.getParent() : ofJob).toString();
    }

    private static CheckpointStorageAccess storage(Environment environment) {
        try {
            return environment.getCheckpointStorageAccess();
        } catch (UnsupportedOperationException | NullPointerException | IllegalStateException e) {
            return null;
        }
    }

    private static URI toUri(String directory, String option) {
        URI uri = new Path(directory).toUri();
        String scheme = uri.getScheme();
        if (scheme != null && !scheme.toLowerCase(Locale.ROOT).equals("file")) {
            throw new IllegalConfigurationException(
                    String.format(
                            "%s: '%s' has the scheme '%s', which Weir cannot reach. Allowed:"
                                    + " file://. Name a directory of that kind with %s.",
                            option, directory, scheme, WeirOptions.DIRECTORY.key()));
        }
        if (uri.getPath() == null || !uri.getPath().startsWith("/")) {
            throw new IllegalConfigurationException(
                    String.format(
                            "%s: '%s' is not allowed. Allowed: an absolute directory.",
                            option, directory));
        }
        return uri;
    }

    private static void makeWritable(String path, String option) throws StoreUnavailableException {
        java.nio.file.Path directory = Paths.get(path);
        try {
            Files.createDirectories(directory);
        } catch (IOException e) {
            throw new StoreUnavailableException(
                    String.format(
                            "The store's directory %s (from %s) cannot be made: %s.",
                            path, option, e));
        }
        if (!Files.isWritable(directory)) {
            throw new StoreUnavailableException(
                    String.format(
                            "The store's directory %s (from %s) cannot be written.", path, option));
        }
    }

    private static String fileUri(String path) {
        try {
            return new URI("file", "", path, null, null).toString();
        } catch (URISyntaxException e) {
            throw new IllegalConfigurationException(
                    "The directory " + path + " cannot be written as a URI.", e);
        }
    }
}
