package io.weir.bench;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;

/** Writes figures as JSON, one object a line, if a file was named. */
final class Figures implements AutoCloseable {

    private final PrintStream out;

    /**
     * @param file null for none
     */
    Figures(String file) throws IOException {
        out = file == null ? null : new PrintStream(Files.newOutputStream(Path.of(file)), true);
    }

    void add(String work, String backend, String metric, double value, String unit) {
        if (out != null) {
            out.printf(
                    Locale.ROOT,
                    "{\"work\":\"%s\",\"backend\":\"%s\",\"metric\":\"%s\",\"value\":%.4f,"
                            + "\"unit\":\"%s\"}%n",
                    work,
                    backend,
                    metric,
                    value,
                    unit);
        }
    }

    @Override
    public void close() {
        if (out != null) {
            out.close();
        }
    }
}
