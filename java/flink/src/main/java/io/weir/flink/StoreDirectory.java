package io.weir.flink;

import io.weir.flink.errors.StoreUnavailableException;

import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.IllegalConfigurationException;
import org.apache.flink.core.fs.Path;
import org.apache.flink.runtime.execution.Environment;
import org.apache.flink.runtime.state.CheckpointStorageAccess;
import org.apache.flink.runtime.state.filesystem.FsCheckpointStorageAccess;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Locale;

/** Where the store of a job lies, as a URI that the native library takes. */
final class StoreDirectory {

    private static final String UNDER_CHECKPOINTS = "weir";

    private final String uri;
    private final boolean explicit;

    private StoreDirectory(String uri, boolean explicit) {
        this.uri = uri;
        this.explicit = explicit;
    }

    String uri() {
        return uri;
    }

    /** Whether the user named the directory rather than the checkpoints'. */
    boolean isExplicit() {
        return explicit;
    }

    /**
     * Finds the directory and makes sure that it can be written.
     *
     * @throws IllegalConfigurationException if there is none, or its scheme cannot be reached
     * @throws StoreUnavailableException naming the directory, if it cannot be made or written
     */
    static StoreDirectory resolve(WeirConfig config, Environment environment) throws IOException {
        if (config.store() == WeirOptions.Store.MEMORY) {
            return inMemory(config.directory());
        }
        boolean explicit = config.directory() != null;
        String option =
                explicit
                        ? WeirOptions.DIRECTORY.key()
                        : CheckpointingOptions.CHECKPOINTS_DIRECTORY.key();
        String base = explicit ? config.directory() : checkpointDirectory(config, environment);
        if (base == null) {
            throw new IllegalConfigurationException(
                    String.format(
                            "Weir needs a directory that outlives the job: the checkpoints go to"
                                    + " the JobManager's memory. Set %s, or %s.",
                            CheckpointingOptions.CHECKPOINTS_DIRECTORY.key(),
                            WeirOptions.DIRECTORY.key()));
        }
        URI directory = toUri(base, option);
        String path = directory.getPath();
        if (!explicit) {
            path = (path.endsWith("/") ? path : path + "/") + UNDER_CHECKPOINTS;
        } else if (path.length() > 1 && path.endsWith("/")) {
            path = path.substring(0, path.length() - 1);
        }
        makeWritable(path, option);
        return new StoreDirectory(fileUri(path), explicit);
    }

    private static StoreDirectory inMemory(String directory) {
        String name = directory == null ? "memory://default" : directory;
        if (!name.matches("memory://[A-Za-z0-9._-]+")) {
            throw new IllegalConfigurationException(
                    String.format(
                            "%s: '%s' is not allowed. With the memory store it is memory://NAME.",
                            WeirOptions.DIRECTORY.key(), name));
        }
        return new StoreDirectory(name, true);
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
