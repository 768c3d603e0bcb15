package io.weir.flink.nativelib;

import io.weir.flink.errors.NativeLibraryException;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Loads the native library once a class loader. It is unpacked from the jar ({@code
 * native/<os>-<arch>/}) to a file of its own name under one of Flink's temporary directories, and
 * the file is removed again once it is mapped: a JVM refuses to load one file through two class
 * loaders, and a process that is killed must not fill the disk.
 */
public final class NativeLibrary {

    /**
     * System property with the path of a library to load instead of the one in the jar, for tests.
     */
    public static final String PATH_PROPERTY = "weir.library.path";

    private static final Logger LOG = LoggerFactory.getLogger(NativeLibrary.class);

    private static final String PREFIX = "libweir-";
    private static final Pattern GLIBC = Pattern.compile("GLIBC_(\\d+(\\.\\d+)+)");

    private static boolean loaded;

    private NativeLibrary() {}

    /**
     * Makes the library usable; returns at once if it is.
     *
     * @param temporaryDirectories directories to unpack to, tried in order
     * @throws NativeLibraryException naming operating system, architecture, path and cause
     */
    public static synchronized void load(String... temporaryDirectories)
            throws NativeLibraryException {
        if (loaded) {
            return;
        }
        String override = System.getProperty(PATH_PROPERTY);
        if (override != null) {
            link(Paths.get(override).toAbsolutePath());
        } else {
            loadFromJar(temporaryDirectories);
        }
        int abi = NativeEngine.abi();
        if (abi != NativeEngine.ABI) {
            throw failure(
                    override == null ? resource() : override,
                    "it speaks version "
                            + abi
                            + " of the bridge, this jar version "
                            + NativeEngine.ABI,
                    null);
        }
        try {
            NativeEngine.initLogging(NativeLog.class);
        } catch (IOException e) {
            throw failure(
                    override == null ? resource() : override,
                    "its log cannot be shown: " + e.getMessage(),
                    e);
        }
        loaded = true;
    }

    private static void loadFromJar(String[] temporaryDirectories) throws NativeLibraryException {
        String resource = resource();
        List<String> refusals = new ArrayList<>();
        NativeLibraryException last = null;
        for (String directory : temporaryDirectories) {
            Path file = null;
            try (InputStream packed =
                    NativeLibrary.class.getClassLoader().getResourceAsStream(resource)) {
                if (packed == null) {
                    throw failure(
                            resource,
                            "the jar carries no library for this operating system and architecture",
                            null);
                }
                Path home = Paths.get(directory).toAbsolutePath();
                Files.createDirectories(home);
                OwnedFiles.removeLeftovers(home, PREFIX);
                file = OwnedFiles.newPath(home, PREFIX, ".so");
                Files.copy(packed, file);
                link(file);
                return;
            } catch (NativeLibraryException e) {
                if (file == null) {
                    throw e;
                }
                last = e;
                refusals.add(e.getMessage());
            } catch (IOException e) {
                last = failure(directory, "the library could not be unpacked there: " + e, e);
                refusals.add(last.getMessage());
            } finally {
                remove(file);
            }
        }
        if (last == null) {
            throw failure(resource, "no temporary directory was given to unpack it to", null);
        }
        throw refusals.size() == 1
                ? last
                : new NativeLibraryException(String.join(" ", refusals), last);
    }

    private static void link(Path file) throws NativeLibraryException {
        try {
            System.load(file.toString());
            LOG.info("Loaded the native library from {}.", file);
        } catch (UnsatisfiedLinkError | SecurityException e) {
            throw failure(file.toString(), explain(e), e);
        }
    }

    private static String explain(Throwable cause) {
        String message = String.valueOf(cause.getMessage());
        Matcher glibc = GLIBC.matcher(message);
        if (glibc.find()) {
            return "it needs glibc "
                    + glibc.group(1)
                    + " or newer, which this machine does not have ("
                    + message
                    + ")";
        }
        if (message.contains("failed to map segment")) {
            return "the directory seems to be mounted noexec; name another one with io.tmp.dirs ("
                    + message
                    + ")";
        }
        return message;
    }

    private static NativeLibraryException failure(String path, String why, Throwable cause) {
        return new NativeLibraryException(
                "The native library of Weir cannot be used on "
                        + System.getProperty("os.name")
                        + " "
                        + System.getProperty("os.arch")
                        + ": "
                        + path
                        + ": "
                        + why
                        + ".",
                cause);
    }

    /**
     * The library's place in the jar for the running machine, such as {@code
     * native/linux-x86_64/libweir.so}.
     */
    static String resource() {
        String os = System.getProperty("os.name").toLowerCase(Locale.ROOT);
        String arch = System.getProperty("os.arch").toLowerCase(Locale.ROOT);
        String system =
                os.startsWith("mac")
                        ? "macos"
                        : os.startsWith("windows") ? "windows" : os.replace(' ', '_');
        String machine;
        switch (arch) {
            case "amd64":
            case "x86_64":
                machine = "x86_64";
                break;
            case "aarch64":
            case "arm64":
                machine = "aarch64";
                break;
            default:
                machine = arch;
        }
        return "native/" + system + "-" + machine + "/" + System.mapLibraryName("weir");
    }

    private static void remove(Path file) {
        if (file == null) {
            return;
        }
        try {
            Files.deleteIfExists(file);
        } catch (IOException e) {
            File left = file.toFile();
            left.deleteOnExit();
            LOG.debug("{} will be removed when the process ends.", file, e);
        }
    }
}
