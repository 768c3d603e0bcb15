package io.weir.e2e.jobs;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * What lies in a folder, also while others write and delete there; and file systems of a test's
 * own.
 */
public final class Folder {
    /** A regular file and its size in bytes. */
    public record Entry(Path path, long bytes) {}

    private Folder() {}

    public static List<Entry> files(Path folder) throws IOException {
        List<Entry> files = new ArrayList<>();
        if (!Files.exists(folder)) {
            return files;
        }
        Files.walkFileTree(
                folder,
                new SimpleFileVisitor<>() {
                    @Override
                    public FileVisitResult visitFile(Path file, BasicFileAttributes attributes) {
                        files.add(new Entry(file, attributes.size()));
                        return FileVisitResult.CONTINUE;
                    }

                    @Override
                    public FileVisitResult visitFileFailed(Path file, IOException failure)
                            throws IOException {
                        if (failure instanceof NoSuchFileException) {
                            return FileVisitResult.CONTINUE;
                        }
                        throw failure;
                    }
                });
        return files;
    }

    public static long bytes(Path folder) throws IOException {
        return files(folder).stream().mapToLong(Entry::bytes).sum();
    }

    public static void delete(Path folder) throws IOException {
        if (!Files.exists(folder)) {
            return;
        }
        try (var paths = Files.walk(folder)) {
            paths.sorted((a, b) -> b.compareTo(a))
                    .forEach(
                            path -> {
                                try {
                                    Files.delete(path);
                                } catch (IOException e) {
                                    throw new UncheckedIOException(e);
                                }
                            });
        }
    }

    /** A small file system in memory, mounted at a folder until closed. */
    public static final class Mount implements AutoCloseable {
        private final Path at;

        private Mount(Path at) {
            this.at = at;
        }

        /** Null, and the reason printed, where mounting is not possible. */
        public static Mount of(Path at, String size) throws Exception {
            Files.createDirectories(at);
            String trouble =
                    command("mount", "-t", "tmpfs", "-o", "size=" + size, "tmpfs", at.toString());
            if (trouble != null) {
                System.out.println("skipped, since no file system can be mounted here: " + trouble);
                return null;
            }
            return new Mount(at);
        }

        public void remount(String options) throws Exception {
            String trouble = command("mount", "-o", "remount," + options, at.toString());
            if (trouble != null) {
                throw new IOException(trouble);
            }
        }

        @Override
        public void close() throws Exception {
            command("umount", "-l", at.toString());
        }

        private static String command(String... command) throws Exception {
            Process process;
            try {
                process = new ProcessBuilder(command).redirectErrorStream(true).start();
            } catch (IOException e) {
                return e.getMessage();
            }
            String output = new String(process.getInputStream().readAllBytes()).trim();
            boolean ended = process.waitFor(10, TimeUnit.SECONDS);
            return ended && process.exitValue() == 0 ? null : output;
        }
    }
}
