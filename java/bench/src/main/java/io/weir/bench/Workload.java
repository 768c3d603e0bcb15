package io.weir.bench;

import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.runtime.state.KeyGroupedInternalPriorityQueue;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.streaming.api.operators.TimerHeapInternalTimer;
import org.apache.flink.streaming.api.operators.TimerSerializer;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;

/**
 * What is done to one kind of state. The same calls with the same seeds give the same check sums on
 * every backend.
 */
abstract class Workload<K, V> {

    static final List<String> KINDS = List.of("value", "list", "map", "timer");

    /** Operations by kind. */
    static final Map<String, List<String>> OPERATIONS = operations();

    static final int MAP_ENTRIES = 10;

    /** More than the files that either store leaves unmerged. */
    private static final int SLICES = 8;

    final Backend<K> backend;
    final Data<K> keys;
    final Data<V> values;
    final int count;

    /**
     * @param count number of keys
     */
    Workload(Backend<K> backend, Data<K> keys, Data<V> values, int count) {
        this.backend = backend;
        this.keys = keys;
        this.values = values;
        this.count = count;
    }

    private static Map<String, List<String>> operations() {
        Map<String, List<String>> operations = new LinkedHashMap<>();
        operations.put("value", List.of("valueGet", "valueUpdate", "valueInsert"));
        operations.put(
                "list", List.of("listAdd", "listGet1", "listGet10", "listGet30", "listUpdate"));
        operations.put("map", List.of("mapGet", "mapContains", "mapUpdate", "mapIterator"));
        operations.put("timer", List.of("timerAdd", "timerPoll"));
        return operations;
    }

    /**
     * Of how many keys an operation selects one each time.
     *
     * @param count number of keys of the benchmark
     */
    static int selected(String operation, int count) {
        boolean fewer = List.of("listGet10", "listGet30", "listUpdate").contains(operation);
        return fewer ? fewer(count) : count;
    }

    /**
     * Whether the same values or lists are written again and again, so that what a flush costs an
     * operation depends on how often.
     */
    static boolean rewrites(String operation) {
        return operation.endsWith("Update") || operation.equals("listAdd");
    }

    private static int fewer(int count) {
        return Math.max(1, count / 10);
    }

    static List<String> allOperations() {
        List<String> all = new ArrayList<>();
        OPERATIONS.values().forEach(all::addAll);
        return all;
    }

    static <K, V> Workload<K, V> of(
            String kind, Backend<K> backend, Data<K> keys, Data<V> values, int count)
            throws Exception {
        switch (kind) {
            case "value":
                return new Values<>(backend, keys, values, count);
            case "list":
                return new Lists<>(backend, keys, values, count);
            case "map":
                return new Maps<>(backend, keys, values, count);
            case "timer":
                return new Timers<>(backend, keys, values, count);
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    /**
     * Fills the states, key by key, with a checkpoint after every eighth of the keys: so what is
     * there lies in the store as it does in a job, and is merged before anything is measured.
     */
    final void load() throws Exception {
        for (int slice = 0; slice < SLICES; slice++) {
            load(
                    (int) ((long) count * slice / SLICES),
                    (int) ((long) count * (slice + 1) / SLICES));
            backend.complete(backend.barrier());
        }
    }

    /** Fills the states of the keys from {@code first} on, before {@code end}. */
    abstract void load(int first, int end) throws Exception;

    /** Makes sure that an operation can be run so many times; not measured. */
    void prepare(String operation, long times) throws Exception {}

    /**
     * Runs an operation so many times.
     *
     * @return the check sum of what was read
     */
    abstract long run(String operation, SplittableRandom random, int times) throws Exception;

    /** The check sum of all that is in the states. */
    abstract long verify() throws Exception;

    final int select(SplittableRandom random, int bound) {
        int key = random.nextInt(bound);
        backend.keyed.setCurrentKey(keys.of(key));
        return key;
    }

    private static final class Values<K, V> extends Workload<K, V> {

        private final ValueState<V> state;
        private int next;

        Values(Backend<K> backend, Data<K> keys, Data<V> values, int count) throws Exception {
            super(backend, keys, values, count);
            state = backend.state(new ValueStateDescriptor<>("value", values.serializer()));
        }

        @Override
        void load(int first, int end) throws Exception {
            insert(end - first);
        }

        private long insert(int times) throws Exception {
            for (int end = next + times; next < end; next++) {
                backend.keyed.setCurrentKey(keys.of(next));
                state.update(values.of(next));
            }
            return next;
        }

        @Override
        long run(String operation, SplittableRandom random, int times) throws Exception {
            switch (operation) {
                case "valueGet":
                    return get(random, times);
                case "valueUpdate":
                    return update(random, times);
                default:
                    return insert(times);
            }
        }

        private long get(SplittableRandom random, int times) throws Exception {
            long sum = 0;
            for (int i = 0; i < times; i++) {
                select(random, count);
                sum += values.sum(state.value());
            }
            return sum;
        }

        private long update(SplittableRandom random, int times) throws Exception {
            for (int i = 0; i < times; i++) {
                int key = select(random, count);
                state.update(values.of(key + i));
            }
            return times;
        }

        @Override
        long verify() throws Exception {
            long sum = 0;
            for (int i = 0; i < next; i++) {
                backend.keyed.setCurrentKey(keys.of(i));
                sum = sum * 31 + values.sum(state.value());
            }
            return sum;
        }
    }

    private static final class Lists<K, V> extends Workload<K, V> {

        private final ListState<V> added;
        private final ListState<V> replaced;
        private final ListState<V> of1;
        private final ListState<V> of10;
        private final ListState<V> of30;
        private final int fewer;

        Lists(Backend<K> backend, Data<K> keys, Data<V> values, int count) throws Exception {
            super(backend, keys, values, count);
            fewer = fewer(count);
            added = state("added");
            replaced = state("replaced");
            of1 = state("of1");
            of10 = state("of10");
            of30 = state("of30");
        }

        private ListState<V> state(String name) throws Exception {
            return backend.state(new ListStateDescriptor<>(name, values.serializer()));
        }

        @Override
        void load(int first, int end) throws Exception {
            for (int i = first; i < end; i++) {
                backend.keyed.setCurrentKey(keys.of(i));
                added.add(values.of(i));
                of1.add(values.of(i));
            }
            // An element at a time to every list, as jobs do.
            for (int element = 0; element < 30; element++) {
                for (int i = first; i < Math.min(end, fewer); i++) {
                    backend.keyed.setCurrentKey(keys.of(i));
                    of30.add(values.of(i + element));
                    if (element < 10) {
                        of10.add(values.of(i + element));
                    }
                }
            }
        }

        @Override
        long run(String operation, SplittableRandom random, int times) throws Exception {
            switch (operation) {
                case "listAdd":
                    return add(random, times);
                case "listUpdate":
                    return update(random, times);
                case "listGet1":
                    return get(of1, count, random, times);
                case "listGet10":
                    return get(of10, fewer, random, times);
                default:
                    return get(of30, fewer, random, times);
            }
        }

        private long add(SplittableRandom random, int times) throws Exception {
            for (int i = 0; i < times; i++) {
                int key = select(random, count);
                added.add(values.of(key + i));
            }
            return times;
        }

        private long get(ListState<V> state, int bound, SplittableRandom random, int times)
                throws Exception {
            long sum = 0;
            for (int i = 0; i < times; i++) {
                select(random, bound);
                sum += sum(state);
            }
            return sum;
        }

        private long update(SplittableRandom random, int times) throws Exception {
            for (int i = 0; i < times; i++) {
                int key = select(random, fewer);
                List<V> list = new ArrayList<>(10);
                for (int element = 0; element < 10; element++) {
                    list.add(values.of(key + i + element));
                }
                replaced.update(list);
            }
            return times;
        }

        private long sum(ListState<V> state) throws Exception {
            long sum = 0;
            Iterable<V> list = state.get();
            if (list != null) {
                for (V value : list) {
                    sum = sum * 31 + values.sum(value);
                }
            }
            return sum;
        }

        @Override
        long verify() throws Exception {
            long sum = 0;
            for (int i = 0; i < count; i++) {
                backend.keyed.setCurrentKey(keys.of(i));
                sum += sum(added) + 31 * sum(replaced);
            }
            return sum;
        }
    }

    private static final class Maps<K, V> extends Workload<K, V> {

        private final Data<K> userKeys;
        private final MapState<K, V> state;

        Maps(Backend<K> backend, Data<K> keys, Data<V> values, int count) throws Exception {
            super(backend, keys, values, count);
            userKeys = keys.prepared(MAP_ENTRIES);
            state =
                    backend.state(
                            new MapStateDescriptor<>(
                                    "map", userKeys.serializer(), values.serializer()));
        }

        @Override
        void load(int first, int end) throws Exception {
            for (int i = first; i < end; i++) {
                backend.keyed.setCurrentKey(keys.of(i));
                for (int entry = 0; entry < MAP_ENTRIES; entry++) {
                    state.put(userKeys.of(entry), values.of(i + entry));
                }
            }
        }

        @Override
        long run(String operation, SplittableRandom random, int times) throws Exception {
            switch (operation) {
                case "mapGet":
                    return get(random, times);
                case "mapContains":
                    return contains(random, times);
                case "mapUpdate":
                    return update(random, times);
                default:
                    return iterate(random, times);
            }
        }

        private long get(SplittableRandom random, int times) throws Exception {
            long sum = 0;
            for (int i = 0; i < times; i++) {
                select(random, count);
                sum += values.sum(state.get(userKeys.of(random.nextInt(MAP_ENTRIES))));
            }
            return sum;
        }

        private long contains(SplittableRandom random, int times) throws Exception {
            long sum = 0;
            for (int i = 0; i < times; i++) {
                select(random, count);
                sum += state.contains(userKeys.of(random.nextInt(MAP_ENTRIES))) ? 1 : 0;
            }
            return sum;
        }

        private long update(SplittableRandom random, int times) throws Exception {
            for (int i = 0; i < times; i++) {
                int key = select(random, count);
                state.put(userKeys.of(random.nextInt(MAP_ENTRIES)), values.of(key + i));
            }
            return times;
        }

        private long iterate(SplittableRandom random, int times) throws Exception {
            long sum = 0;
            for (int i = 0; i < times; i++) {
                select(random, count);
                sum += sum();
            }
            return sum;
        }

        /** Of a map's entries in any order. */
        private long sum() throws Exception {
            long sum = 0;
            for (Map.Entry<K, V> entry : state.entries()) {
                sum += keys.sum(entry.getKey()) * 31 + values.sum(entry.getValue());
            }
            return sum;
        }

        @Override
        long verify() throws Exception {
            long sum = 0;
            for (int i = 0; i < count; i++) {
                backend.keyed.setCurrentKey(keys.of(i));
                sum = sum * 31 + sum();
            }
            return sum;
        }
    }

    private static final class Timers<K, V> extends Workload<K, V> {

        /** Timers lie this far ahead of the earliest, in ms. */
        private static final int HORIZON = 3_600_000;

        private final KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<K, VoidNamespace>>
                queue;
        private final SplittableRandom refill = new SplittableRandom(7);
        private long now;
        private long queued;

        Timers(Backend<K> backend, Data<K> keys, Data<V> values, int count) throws Exception {
            super(backend, keys, values, count);
            queue =
                    backend.keyed.create(
                            "timers",
                            new TimerSerializer<>(
                                    keys.serializer(), VoidNamespaceSerializer.INSTANCE));
        }

        @Override
        void load(int first, int end) throws Exception {
            add(refill, end - first);
        }

        @Override
        void prepare(String operation, long times) throws Exception {
            if (operation.equals("timerPoll") && queued < count + times) {
                add(refill, Math.toIntExact(count + times - queued));
            }
        }

        @Override
        long run(String operation, SplittableRandom random, int times) throws Exception {
            return operation.equals("timerAdd") ? add(random, times) : poll(times);
        }

        /** The queue is a set, but that a timer is there already is too rare to matter. */
        private long add(SplittableRandom random, int times) {
            for (int i = 0; i < times; i++) {
                K key = keys.of(random.nextInt(count));
                long timestamp = now + 1 + random.nextInt(HORIZON);
                queue.add(new TimerHeapInternalTimer<>(timestamp, key, VoidNamespace.INSTANCE));
            }
            queued += times;
            return times;
        }

        private long poll(int times) {
            long sum = 0;
            for (int i = 0; i < times; i++) {
                TimerHeapInternalTimer<K, VoidNamespace> timer = queue.poll();
                if (timer.getTimestamp() < now) {
                    throw new IllegalStateException("timers came out of order");
                }
                now = timer.getTimestamp();
                sum = sum * 31 + now;
            }
            queued -= times;
            return sum;
        }

        @Override
        long verify() {
            long sum = 0;
            for (TimerHeapInternalTimer<K, VoidNamespace> timer = queue.poll();
                    timer != null;
                    timer = queue.poll()) {
                sum += timer.getTimestamp() * 31 + keys.sum(timer.getKey());
            }
            return sum;
        }
    }
}
