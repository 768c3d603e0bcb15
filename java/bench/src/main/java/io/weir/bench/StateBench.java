package io.weir.bench;

import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/** {@code ./weir bench state}. */
final class StateBench {

    private static final String USAGE =
            String.join(
                    "\n",
                    "usage: ./weir bench state [--json FILE] [--backend A,B] [--operations X,Y]"
                            + " [--types T,U] [--keys N]",
                    "                          [--seconds S] [--rounds R] [--updates-a-key U]"
                            + " [--heap SIZE]",
                    "",
                    "Operations of Flink's state API on its own backends and on Weir, side by"
                            + " side.",
                    "",
                    "  --json FILE     also write every figure as a JSON object a line: work,"
                            + " backend, metric, value, unit",
                    "  --backend       of hashmap, rocksdb, forst, weir; default: all of them",
                    "  --operations    of those below; default: all",
                    "  --types         key/value with keys of long, string, rowdata and values of"
                            + " long, pojo, rowdata; 'all' for",
                    "                  the nine; default: long/long,string/pojo,rowdata/rowdata",
                    "  --keys N        keys (default 500000)",
                    "  --seconds S     CPU seconds that the slowest backend works in a round"
                            + " (default 1)",
                    "  --rounds R      rounds (default 5)",
                    "  --updates-a-key U  valueUpdate, listUpdate, listAdd and mapUpdate are done U"
                            + " times a key in all",
                    "                  rounds together, whatever time that takes (default 10)",
                    "  --heap SIZE     -Xmx of each JVM (default 4g)",
                    "",
                    "Each operation selects a key at random, then:",
                    "  valueGet        ValueState.value() of one of N keys",
                    "  valueUpdate     ValueState.update() of one of N keys",
                    "  valueInsert     ValueState.update() of a key that is new",
                    "  listAdd         ListState.add() to one of N lists, which begin with one"
                            + " element",
                    "  listGet1        ListState.get(), all elements read, of one of N lists of 1",
                    "  listGet10       the same of one of N/10 lists of 10, that were added one by"
                            + " one",
                    "  listGet30       the same of one of N/10 lists of 30",
                    "  listUpdate      ListState.update() with a list of 10 of one of N/10 keys",
                    "  mapGet          MapState.get() of one of N maps of 10 entries",
                    "  mapContains     MapState.contains() of an entry that is there",
                    "  mapUpdate       MapState.put() over an entry",
                    "  mapIterator     MapState.entries() of one of N maps of 10, keys and values"
                            + " read",
                    "  timerAdd        KeyGroupedInternalPriorityQueue.add() to N timers and more,"
                            + " up to an hour ahead",
                    "  timerPoll       the same queue's poll(), in order, of N timers and more",
                    "",
                    "Each backend has a JVM of its own, 128 key groups, 2 GiB of managed memory"
                            + " (all rows fit) and its defaults.",
                    "The JVMs take turns in short rounds, with the same calls in the same order;"
                            + " what they read must be equal.",
                    "",
                    "How often a key is updated between two checkpoints decides what an update"
                            + " costs the whole process, since",
                    "a row that was overwritten before it was flushed is flushed once. So that"
                            + " number is fixed, and printed with",
                    "each operation (a key). flink-benchmarks updates each of its 500,000 keys"
                            + " about 10 to 20 times in a run.",
                    "",
                    "Metrics:",
                    "  task thread     operations by CPU second of the thread that calls the state;"
                            + " the median of the rounds",
                    "  process         operations by CPU second of the whole process, from the"
                            + " first round, before which all was flushed,",
                    "                  until a checkpoint after the last one is complete and"
                            + " nothing is left to flush or compact: background threads,",
                    "                  GC and JIT are in it, also what the process does while it"
                            + " waits for its next turn",
                    "  times rocksdb   a backend's figure by RocksDB's of the same run",
                    "");

    private final Figures figures;
    private final List<String> backends;
    private final List<String> operations;
    private final int keys;
    private final double seconds;
    private final int rounds;
    private final double updatesAKey;
    private final String heap;
    private final List<String> table = new ArrayList<>();

    private StateBench(Arguments arguments, Figures figures) {
        this.figures = figures;
        backends = arguments.choice("--backend", Backend.NAMES, Backend.NAMES);
        operations =
                arguments.choice(
                        "--operations", Workload.allOperations(), Workload.allOperations());
        keys = arguments.number("--keys", 500_000);
        seconds = arguments.decimal("--seconds", 1);
        rounds = arguments.number("--rounds", 5);
        updatesAKey = arguments.decimal("--updates-a-key", 10);
        heap = arguments.text("--heap", "4g");
    }

    static void main(String[] line) throws Exception {
        Set<String> known =
                Set.of(
                        "--json",
                        "--backend",
                        "--operations",
                        "--types",
                        "--keys",
                        "--seconds",
                        "--rounds",
                        "--updates-a-key",
                        "--heap");
        Arguments arguments = new Arguments(line, known, USAGE);
        List<String> types =
                arguments.choice(
                        "--types",
                        allTypes(),
                        List.of("long/long", "string/pojo", "rowdata/rowdata"));
        try (Figures figures = new Figures(arguments.text("--json", null))) {
            StateBench bench = new StateBench(arguments, figures);
            for (String type : types) {
                for (String kind : Workload.KINDS) {
                    bench.measure(type, kind);
                }
            }
            bench.print();
        }
    }

    private static List<String> allTypes() {
        List<String> types = new ArrayList<>();
        for (String key : Data.KEYS) {
            for (String value : Data.VALUES) {
                types.add(key + "/" + value);
            }
        }
        return types;
    }

    /** The JVMs of one kind of state, closed together. */
    private static final class Peers implements Closeable {

        final List<Peer> peers = new ArrayList<>();

        @Override
        public void close() throws IOException {
            for (Peer peer : peers) {
                peer.close();
            }
        }

        /** What all peers answer, which must be the same. */
        void agree(String what, Map<String, String> answers) {
            if (Set.copyOf(answers.values()).size() > 1) {
                throw new IllegalStateException(
                        "The backends do not agree on " + what + ": " + answers);
            }
        }
    }

    private void measure(String types, String kind) throws IOException {
        List<String> chosen = new ArrayList<>(Workload.OPERATIONS.get(kind));
        chosen.retainAll(operations);
        if (chosen.isEmpty()) {
            return;
        }
        String[] type = types.split("/");
        try (Peers peers = new Peers()) {
            for (String backend : backends) {
                System.err.printf("%s %s: loading %s%n", kind, types, backend);
                Peer peer =
                        new Peer(
                                backend,
                                heap,
                                Worker.VERB,
                                backend,
                                kind,
                                type[0],
                                type[1],
                                Integer.toString(keys));
                peers.peers.add(peer);
                peer.ask("load");
            }
            for (String operation : chosen) {
                measure(operation, types, peers);
            }
            Map<String, String> sums = new LinkedHashMap<>();
            for (Peer peer : peers.peers) {
                sums.put(peer.backend, peer.ask("verify"));
            }
            peers.agree("what is in the states of kind " + kind, sums);
        }
    }

    private void measure(String operation, String types, Peers peers) throws IOException {
        int times = warmUp(operation, peers);
        int selected = Workload.selected(operation, keys);
        if (Workload.rewrites(operation)) {
            times = Math.max(1, (int) Math.ceil(updatesAKey * selected / rounds));
        }
        double aKey = (double) times * rounds / selected;
        for (Peer peer : peers.peers) {
            peer.ask("prepare", operation, (long) times * rounds);
            peer.ask("begin");
        }
        Map<String, double[]> byThread = new LinkedHashMap<>();
        for (Peer peer : peers.peers) {
            byThread.put(peer.backend, new double[rounds]);
        }
        for (int round = 0; round < rounds; round++) {
            Map<String, long[]> took = run(operation, times, round, peers);
            for (Peer peer : peers.peers) {
                byThread.get(peer.backend)[round] = times / (took.get(peer.backend)[0] / 1e9);
            }
        }
        Map<String, Double> thread = new LinkedHashMap<>();
        Map<String, Double> process = new LinkedHashMap<>();
        for (Peer peer : peers.peers) {
            double[] ofRounds = byThread.get(peer.backend);
            Arrays.sort(ofRounds);
            thread.put(peer.backend, ofRounds[rounds / 2]);
            long cpu = Long.parseLong(peer.ask("finish"));
            process.put(peer.backend, (double) times * rounds / (cpu / 1e9));
        }
        report(operation + " " + types, "task thread", aKey, thread);
        report(operation + " " + types, "process", aKey, process);
    }

    /**
     * Runs an operation until its code is compiled.
     *
     * @return how many times the slowest backend does it in a round
     */
    private int warmUp(String operation, Peers peers) throws IOException {
        int times = 2_000;
        long seed = -1;
        double used = 0;
        while (true) {
            for (Peer peer : peers.peers) {
                peer.ask("prepare", operation, times);
            }
            double slowest = 0;
            for (long[] answer : run(operation, times, seed--, peers).values()) {
                slowest = Math.max(slowest, answer[0] / 1e9);
            }
            used += slowest;
            if (used >= 2 * seconds && slowest >= seconds / 4) {
                return (int) Math.max(1000, times * Math.min(4, seconds / slowest));
            }
            if (slowest < seconds) {
                times *= 2;
            }
        }
    }

    /** CPU nanoseconds of the thread and check sum of every backend. */
    private Map<String, long[]> run(String operation, int times, long seed, Peers peers)
            throws IOException {
        List<Peer> order = new ArrayList<>(peers.peers);
        Collections.rotate(order, (int) Math.floorMod(seed, (long) order.size()));
        Map<String, long[]> answers = new LinkedHashMap<>();
        Map<String, String> sums = new LinkedHashMap<>();
        for (Peer peer : order) {
            String[] answer = peer.ask("run", operation, times, seed).split(" ");
            answers.put(
                    peer.backend,
                    new long[] {Long.parseLong(answer[0]), Long.parseLong(answer[1])});
            sums.put(peer.backend, answer[1]);
        }
        peers.agree("what " + operation + " read", sums);
        return answers;
    }

    private void report(String work, String metric, double aKey, Map<String, Double> values) {
        if (table.isEmpty()) {
            StringBuilder head =
                    new StringBuilder(String.format("%-36s%-14s%7s", "work", "metric", "a key"));
            backends.forEach(backend -> head.append(String.format("%10s", backend)));
            table.add(head.append("   weir/rocksdb").toString());
        }
        StringBuilder line =
                new StringBuilder(
                        String.format(Locale.ROOT, "%-36s%-14s%7.1f", work, metric, aKey));
        for (String backend : backends) {
            double value = values.get(backend);
            line.append(String.format(Locale.ROOT, "%10.0f", value / 1000));
            figures.add(work, backend, metric, value, "ops/CPU-s");
            if (metric.equals("process")) {
                figures.add(work, backend, "operations a key", aKey, "operations");
            }
        }
        Double rocksdb = values.get("rocksdb");
        if (rocksdb != null) {
            for (String backend : backends) {
                if (!backend.equals("rocksdb")) {
                    figures.add(
                            work,
                            backend,
                            metric + ", times rocksdb",
                            values.get(backend) / rocksdb,
                            "ratio");
                }
            }
            if (values.containsKey("weir")) {
                line.append(String.format(Locale.ROOT, "%15.2f", values.get("weir") / rocksdb));
            }
        }
        table.add(line.toString());
        System.err.println(line);
    }

    private void print() {
        System.out.printf(
                "%nthousand operations by CPU second; %d keys, %d rounds of at most %.1f CPU"
                        + " seconds,%nupdates: %.1f a key; a key: operations by key in all"
                        + " rounds%n%n",
                keys, rounds, seconds, updatesAKey);
        table.forEach(System.out::println);
    }
}
