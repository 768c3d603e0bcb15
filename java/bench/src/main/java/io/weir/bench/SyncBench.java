package io.weir.bench;

import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.SnapshotResult;

import java.io.File;
import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.RunnableFuture;

/** {@code ./weir bench sync}: the synchronous part of a checkpoint. */
final class SyncBench {

    /** The first argument of the JVM that measures one backend. */
    private static final String ONE = "--one";

    private static final String USAGE =
            String.join(
                    "\n",
                    "usage: ./weir bench sync [--json FILE] [--backend A,B] [--rounds R] [--heap"
                            + " SIZE]",
                    "",
                    "How long a checkpoint keeps the task thread, as the state and what changed"
                            + " grow: the call of",
                    "CheckpointableKeyedStateBackend.snapshot, without what it leaves to other"
                            + " threads. ValueState of Long keys",
                    "and values. Changed rows: 1k, 10k, 100k and 1M of a state of 1M rows; size:"
                            + " 1k changed rows of a state of",
                    "10k, 100k, 1M and 4M rows. Median of the rounds, in microseconds by the clock"
                            + " and on a processor.",
                    "",
                    "  --json FILE     also write every figure as a JSON object a line: work,"
                            + " backend, metric, value, unit",
                    "  --backend       of hashmap, rocksdb, forst, weir; default: rocksdb,weir",
                    "  --rounds R      checkpoints a figure (default 11)",
                    "  --heap SIZE     -Xmx of each JVM (default 4g)",
                    "");

    private SyncBench() {}

    static void main(String[] line) throws Exception {
        if (line.length > 0 && line[0].equals(ONE)) {
            one(line[1], Integer.parseInt(line[2]), new File(line[3]));
            System.exit(0);
        }
        Arguments arguments =
                new Arguments(line, Set.of("--json", "--backend", "--rounds", "--heap"), USAGE);
        List<String> backends =
                arguments.choice("--backend", Backend.NAMES, List.of("rocksdb", "weir"));
        int rounds = arguments.number("--rounds", 11);
        String heap = arguments.text("--heap", "4g");
        try (Figures figures = new Figures(arguments.text("--json", null))) {
            System.out.printf(
                    "%-10s%12s%12s%16s%16s%n",
                    "backend", "rows", "changed", "us by clock", "us on CPU");
            for (String backend : backends) {
                try (Peer peer =
                        new Peer(backend, heap, "sync", ONE, backend, Integer.toString(rounds))) {
                    for (String answer = peer.ask("next");
                            !answer.isEmpty();
                            answer = peer.ask("next")) {
                        report(backend, answer.split(" "), figures);
                    }
                }
            }
        }
    }

    private static void report(String backend, String[] answer, Figures figures) {
        int rows = Integer.parseInt(answer[0]);
        int changed = Integer.parseInt(answer[1]);
        double clock = Long.parseLong(answer[2]) / 1000.0;
        double cpu = Long.parseLong(answer[3]) / 1000.0;
        System.out.printf(
                Locale.ROOT, "%-10s%12d%12d%16.0f%16.0f%n", backend, rows, changed, clock, cpu);
        String work = "checkpoint of " + changed + " changed of " + rows + " rows";
        figures.add(work, backend, "synchronous part, by clock", clock, "us");
        figures.add(work, backend, "synchronous part, task thread", cpu, "us");
    }

    /** Measures one backend in this JVM; a line is answered for each that is read. */
    private static void one(String name, int rounds, File folder) throws Exception {
        try (Backend<Long> backend = new Backend<>(name, LongSerializer.INSTANCE, folder)) {
            ValueState<Long> state =
                    backend.state(new ValueStateDescriptor<>("value", LongSerializer.INSTANCE));
            long filled = 0;
            for (int rows : new int[] {10_000, 100_000, 1_000_000, 4_000_000}) {
                for (; filled < rows; filled++) {
                    backend.keyed.setCurrentKey(filled);
                    state.update(filled);
                }
                backend.complete(backend.barrier());
                Backend.awaitQuiet();
                measure(backend, state, rows, 1_000, rounds);
                if (rows == 1_000_000) {
                    measure(backend, state, rows, 10_000, rounds);
                    measure(backend, state, rows, 100_000, rounds);
                    measure(backend, state, rows, 1_000_000, rounds);
                }
            }
        }
        awaitCommand();
        System.out.println(Worker.ANSWER);
    }

    private static void measure(
            Backend<Long> backend, ValueState<Long> state, int rows, int changed, int rounds)
            throws Exception {
        long[] clock = new long[rounds];
        long[] cpu = new long[rounds];
        // The first ones are not counted.
        for (int round = -2; round < rounds; round++) {
            int stride = rows / changed;
            for (long key = Math.floorMod(round, stride); key < rows; key += stride) {
                backend.keyed.setCurrentKey(key);
                state.update(key + round);
            }
            long began = System.nanoTime();
            long beganCpu = Worker.threadCpu();
            RunnableFuture<SnapshotResult<KeyedStateHandle>> rest = backend.barrier();
            if (round >= 0) {
                cpu[round] = Worker.threadCpu() - beganCpu;
                clock[round] = System.nanoTime() - began;
            }
            backend.complete(rest);
        }
        Arrays.sort(clock);
        Arrays.sort(cpu);
        awaitCommand();
        System.out.println(
                Worker.ANSWER
                        + String.join(
                                " ",
                                Integer.toString(rows),
                                Integer.toString(changed),
                                Long.toString(clock[rounds / 2]),
                                Long.toString(cpu[rounds / 2])));
    }

    private static void awaitCommand() throws IOException {
        int read = System.in.read();
        while (read != '\n' && read >= 0) {
            read = System.in.read();
        }
    }
}
