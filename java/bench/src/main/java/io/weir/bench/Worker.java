package io.weir.bench;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.SplittableRandom;

/**
 * A JVM with one backend, which does what it is told by lines on its standard input and answers
 * each with a line on its standard output that begins with {@link #ANSWER}.
 */
final class Worker {

    static final String VERB = "worker";
    static final String ANSWER = "@";

    /** Calls of a loop that is compiled as a whole rather than replaced while it runs. */
    private static final int SLICE = 2_000;

    private Worker() {}

    /** {@code backend kind keyType valueType keys folder}. */
    static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[4]);
        run(
                arguments[0],
                arguments[1],
                Data.named(arguments[2]).prepared(count),
                Data.named(arguments[3]),
                count,
                new File(arguments[5]));
        System.exit(0);
    }

    private static <K, V> void run(
            String name, String kind, Data<K> keys, Data<V> values, int count, File folder)
            throws Exception {
        try (Backend<K> backend = new Backend<>(name, keys.serializer(), folder)) {
            Workload<K, V> workload = Workload.of(kind, backend, keys, values, count);
            serve(backend, workload);
        }
    }

    private static void serve(Backend<?> backend, Workload<?, ?> workload) throws Exception {
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        long begun = 0;
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "load":
                    workload.load();
                    Backend.awaitQuiet();
                    answer("");
                    break;
                case "prepare":
                    workload.prepare(words[1], Long.parseLong(words[2]));
                    answer("");
                    break;
                case "run":
                    run(workload, words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]));
                    break;
                case "begin":
                    // What came before is flushed before, and not part of what is measured.
                    backend.complete(backend.barrier());
                    Backend.awaitQuiet();
                    System.gc();
                    begun = Backend.processCpu();
                    answer("");
                    break;
                case "finish":
                    backend.complete(backend.barrier());
                    Backend.awaitQuiet();
                    answer(Long.toString(Backend.processCpu() - begun));
                    break;
                case "verify":
                    answer(Long.toString(workload.verify()));
                    break;
                default:
                    throw new IOException("unknown command " + line);
            }
        }
    }

    /** Answers with the thread's CPU time in nanoseconds and the check sum. */
    private static void run(Workload<?, ?> workload, String operation, int times, long seed)
            throws Exception {
        SplittableRandom random = new SplittableRandom(seed);
        long sum = 0;
        long before = threadCpu();
        for (int left = times; left > 0; left -= SLICE) {
            sum = sum * 31 + workload.run(operation, random, Math.min(SLICE, left));
        }
        answer(threadCpu() - before + " " + sum);
    }

    static long threadCpu() {
        return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }

    private static void answer(String text) {
        System.out.println(ANSWER + text);
    }
}
