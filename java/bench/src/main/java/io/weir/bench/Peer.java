package io.weir.bench;

import java.io.BufferedReader;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;

/** A {@link Worker} in a JVM of its own, with a folder that goes with it. */
final class Peer implements Closeable {

    final String backend;
    private final Path folder;
    private final Process process;
    private final PrintStream commands;
    private final BufferedReader answers;

    /**
     * @param heap as -Xmx takes it
     * @param arguments of the worker, but for the folder
     */
    Peer(String backend, String heap, String... arguments) throws IOException {
        this.backend = backend;
        folder = Files.createTempDirectory("weir-bench-");
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        for (String option : ManagementFactory.getRuntimeMXBean().getInputArguments()) {
            if (option.startsWith("--add-opens")
                    || option.startsWith("-Dweir.")
                    || option.startsWith("-XX:")) {
                command.add(option);
            }
        }
        command.addAll(
                List.of(
                        "-Xmx" + heap,
                        "-XX:+UseG1GC",
                        "-Djava.io.tmpdir=" + folder,
                        "-cp",
                        System.getProperty("java.class.path"),
                        Bench.class.getName()));
        command.addAll(List.of(arguments));
        command.add(folder.toString());
        process =
                new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        commands = new PrintStream(process.getOutputStream(), true, StandardCharsets.UTF_8);
        answers =
                new BufferedReader(
                        new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    }

    /** Sends a command and waits for its answer. */
    String ask(Object... words) throws IOException {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.length() == 0 ? "" : " ").append(word);
        }
        commands.println(line);
        for (String answer = answers.readLine(); answer != null; answer = answers.readLine()) {
            if (answer.startsWith(Worker.ANSWER)) {
                return answer.substring(Worker.ANSWER.length());
            }
            System.err.println(backend + ": " + answer);
        }
        throw new IOException("the JVM of " + backend + " ended while it was told to " + line);
    }

    @Override
    public void close() throws IOException {
        commands.close();
        process.destroyForcibly();
        try {
            process.waitFor();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        List<Path> paths = new ArrayList<>();
        try (Stream<Path> all = Files.walk(folder)) {
            all.sorted(Comparator.reverseOrder()).forEach(paths::add);
        }
        for (Path path : paths) {
            Files.delete(path);
        }
    }
}
