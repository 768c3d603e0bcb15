package io.weir.flink.timers;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.RowKey;
import io.weir.flink.encoding.RowKeyReader;
import io.weir.flink.encoding.TimerCodec;
import io.weir.flink.keyed.RegisteredQueue;
import io.weir.flink.nativelib.Bytes;
import io.weir.flink.nativelib.Engine;
import io.weir.flink.state.GroupCursor;

import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.runtime.state.KeyGroupedInternalPriorityQueue;
import org.apache.flink.runtime.state.Keyed;
import org.apache.flink.runtime.state.PriorityComparable;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.FlinkRuntimeException;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Collection;
import java.util.Deque;
import java.util.HashSet;
import java.util.NoSuchElementException;
import java.util.Set;

/**
 * A queue of timers whose rows are in the engine. The heap holds the first few of each key group:
 * {@link #CACHED_ROWS} rows and {@link #CACHED_BYTES} of one queue, though at least one row of each
 * key group that has any.
 *
 * <p>Adding and removing write to the engine without reading it. A key group is read when its
 * timers on the heap are used up, and at the first {@link #peek} after a restore, never before. No
 * element that a caller gave is kept: {@link #peek} and {@link #poll} make new ones, so callers may
 * change theirs.
 */
final class TimerQueue<T extends PriorityComparable<? super T> & Keyed<?>>
        implements KeyGroupedInternalPriorityQueue<T> {

    static final int CACHED_ROWS = 32 << 10;
    static final int CACHED_BYTES = 8 << 20;
    private static final int MIN_ROWS = 4;
    private static final int MAX_ROWS = 256;
    private static final int FIRST_PAGE_ROWS = 16;

    /** Of a row of a page, beside its suffix. */
    private static final int PAGE_HEADER_BYTES = 8;

    private final Engine engine;
    private final KeyGroupRange range;
    private final int numberOfKeyGroups;
    private final String name;
    private final int stateId;
    private final int maxRows;
    private final int maxBytes;
    private KeyCodec<T> codec;

    private final boolean orderedByRows;

    /** By key group, from the first of the range; null: it has no timers. */
    private final KeyGroupTimers<T>[] keyGroups;

    /** The key groups that have a timer here, as a binary heap by their first ones. */
    private KeyGroupTimers<T>[] heap;

    /** {@link #order} of those, side by side. */
    private long[] orders;

    private int heapSize;

    /** Key groups without a timer here, of which the engine may have some. */
    private final Deque<KeyGroupTimers<T>> unread = new ArrayDeque<>();

    private final RowKey row = new RowKey();
    private final RowKeyReader reader = new RowKeyReader();
    private final DataOutputSerializer noValue = new DataOutputSerializer(1);
    private final Bytes page = new Bytes(1 << 10);
    private int suffixBytes = 32;

    @SuppressWarnings({"unchecked", "rawtypes"})
    TimerQueue(
            Engine engine, KeyGroupRange range, int numberOfKeyGroups, RegisteredQueue<T> queue) {
        this.engine = engine;
        this.range = range;
        this.numberOfKeyGroups = numberOfKeyGroups;
        this.name = queue.name();
        this.stateId = queue.id();
        this.codec = queue.codec();
        this.orderedByRows = codec instanceof TimerCodec;
        int count = range.getNumberOfKeyGroups();
        this.maxRows = Math.max(MIN_ROWS, Math.min(MAX_ROWS, CACHED_ROWS / count));
        this.maxBytes = CACHED_BYTES / count;
        this.keyGroups = new KeyGroupTimers[count];
        this.heap = new KeyGroupTimers[Math.min(count, 16)];
        this.orders = new long[heap.length];
        if (queue.isRestored()) {
            for (int i = 0; i < count; i++) {
                keyGroups[i] = newKeyGroup(range.getStartKeyGroup() + i, false);
                unread.add(keyGroups[i]);
            }
        }
    }

    private KeyGroupTimers<T> newKeyGroup(int keyGroup, boolean complete) {
        return new KeyGroupTimers<>(keyGroup, complete, Math.min(FIRST_PAGE_ROWS, maxRows));
    }

    /** Goes on with a serializer that writes the same rows. */
    void update(RegisteredQueue<T> queue) {
        codec = queue.codec();
        for (int i = 0; i < heapSize; i++) {
            heap[i].head = null;
        }
    }

    // ---------------- the queue

    @Override
    public T peek() {
        try {
            readUnread();
            return heapSize == 0 ? null : head(heap[0]);
        } catch (IOException e) {
            throw failed("read", e);
        }
    }

    @Override
    public T poll() {
        try {
            readUnread();
            if (heapSize == 0) {
                return null;
            }
            KeyGroupTimers<T> timers = heap[0];
            T element = head(timers);
            byte[] suffix = timers.first();
            startRow(timers.keyGroup);
            row.append(suffix, 0, suffix.length);
            engine.groupDelete(row, RowKey.HEADER_BYTES);
            removed(timers, 0);
            return element;
        } catch (IOException e) {
            throw failed("removed", e);
        }
    }

    @Override
    public boolean add(T element) {
        try {
            int keyGroup = encode(element);
            int index = keyGroup - range.getStartKeyGroup();
            KeyGroupTimers<T> timers = keyGroups[index];
            if (timers != null && !timers.covers(row.bytes(), RowKey.HEADER_BYTES, row.length())) {
                put();
                return !unread.isEmpty();
            }
            int position =
                    timers == null
                            ? -1
                            : timers.find(row.bytes(), RowKey.HEADER_BYTES, row.length());
            if (position >= 0) {
                return false;
            }
            put();
            if (timers == null) {
                timers = newKeyGroup(keyGroup, true);
                keyGroups[index] = timers;
            }
            position = -position - 1;
            timers.insert(
                    position, Arrays.copyOfRange(row.bytes(), RowKey.HEADER_BYTES, row.length()));
            timers.shrinkTo(maxRows, maxBytes);
            if (position > 0) {
                return !unread.isEmpty();
            }
            if (timers.heapIndex < 0) {
                push(timers);
            } else {
                siftUp(timers.heapIndex);
            }
            return heap[0] == timers || !unread.isEmpty();
        } catch (IOException e) {
            throw failed("added", e);
        }
    }

    @Override
    public boolean remove(T element) {
        try {
            int keyGroup = encode(element);
            KeyGroupTimers<T> timers = keyGroups[keyGroup - range.getStartKeyGroup()];
            if (timers == null) {
                return !unread.isEmpty();
            }
            if (!timers.covers(row.bytes(), RowKey.HEADER_BYTES, row.length())) {
                engine.groupDelete(row, RowKey.HEADER_BYTES);
                return !unread.isEmpty();
            }
            int position = timers.find(row.bytes(), RowKey.HEADER_BYTES, row.length());
            if (position < 0) {
                return !unread.isEmpty();
            }
            engine.groupDelete(row, RowKey.HEADER_BYTES);
            boolean first = position == 0 && heap[0] == timers;
            removed(timers, position);
            return first || !unread.isEmpty();
        } catch (IOException e) {
            throw failed("removed", e);
        }
    }

    @Override
    public void addAll(Collection<? extends T> elements) {
        if (elements != null) {
            for (T element : elements) {
                add(element);
            }
        }
    }

    @Override
    public boolean isEmpty() {
        try {
            readUnread();
            return heapSize == 0;
        } catch (IOException e) {
            throw failed("read", e);
        }
    }

    /** Reads every timer that is not on the heap. */
    @Override
    public int size() {
        try {
            long size = 0;
            for (KeyGroupTimers<T> timers : keyGroups) {
                if (timers != null) {
                    size += timers.size();
                    if (!timers.isComplete()) {
                        GroupCursor rows = rowsBehind(timers);
                        while (rows.next()) {
                            size++;
                        }
                    }
                }
            }
            return (int) Math.min(size, Integer.MAX_VALUE);
        } catch (IOException e) {
            throw failed("counted", e);
        }
    }

    /**
     * Key group by key group, each in order; a position, not a snapshot: a timer that comes or goes
     * meanwhile may be seen or not, every other one is seen once.
     */
    @Override
    public CloseableIterator<T> iterator() {
        return new Elements(0, keyGroups.length);
    }

    @Override
    public Set<T> getSubsetForKeyGroup(int keyGroup) {
        int index = indexOf(keyGroup);
        Set<T> elements = new HashSet<>();
        new Elements(index, index + 1).forEachRemaining(elements::add);
        return elements;
    }

    /** How many timers are on the heap, for tests. */
    int cachedRows() {
        int rows = 0;
        for (KeyGroupTimers<T> timers : keyGroups) {
            rows += timers == null ? 0 : timers.size();
        }
        return rows;
    }

    // ---------------- rows

    private void startRow(int keyGroup) {
        row.start(keyGroup);
        row.setStateId(stateId);
    }

    /** Writes the element's row key and returns its key group. */
    private int encode(T element) throws IOException {
        int keyGroup =
                KeyGroupRangeAssignment.assignToKeyGroup(element.getKey(), numberOfKeyGroups);
        indexOf(keyGroup);
        startRow(keyGroup);
        codec.write(element, row);
        return keyGroup;
    }

    private int indexOf(int keyGroup) {
        if (!range.contains(keyGroup)) {
            throw new IllegalArgumentException(
                    String.format(
                            "Queue '%s' holds %s and has no timers of key group %d.",
                            name, range, keyGroup));
        }
        return keyGroup - range.getStartKeyGroup();
    }

    private void put() throws IOException {
        engine.groupPut(row, RowKey.HEADER_BYTES, noValue);
    }

    private T head(KeyGroupTimers<T> timers) throws IOException {
        if (timers.head == null) {
            byte[] suffix = timers.first();
            timers.head = decode(suffix, 0, suffix.length);
        }
        return timers.head;
    }

    private T decode(byte[] suffix, int offset, int end) throws IOException {
        reader.reset(suffix, offset, end);
        return codec.read(reader);
    }

    private GroupCursor rowsBehind(KeyGroupTimers<T> timers) {
        startRow(timers.keyGroup);
        return new GroupCursor(engine, row, timers.bound());
    }

    /** Afterwards every key group that has timers has one here. */
    private void readUnread() throws IOException {
        while (!unread.isEmpty()) {
            KeyGroupTimers<T> timers = unread.peek();
            // A timer may have come before the first page was read.
            if (timers.isEmpty() && !timers.isComplete()) {
                readPage(timers);
            }
            unread.remove();
            if (timers.isEmpty()) {
                keyGroups[timers.keyGroup - range.getStartKeyGroup()] = null;
            } else if (timers.heapIndex < 0) {
                push(timers);
            }
        }
    }

    private void readPage(KeyGroupTimers<T> timers) throws IOException {
        startRow(timers.keyGroup);
        byte[] after = timers.bound();
        if (after != null) {
            row.append(after, 0, after.length);
        }
        int rows = timers.pageRows;
        int pageBytes = Math.min(maxBytes, rows * (suffixBytes + PAGE_HEADER_BYTES));
        boolean more =
                engine.groupPage(
                        row, RowKey.HEADER_BYTES, after == null, Math.max(1, pageBytes), page);
        ByteBuffer header = ByteBuffer.wrap(page.array()).order(ByteOrder.LITTLE_ENDIAN);
        int at = 0;
        while (at < page.length() && timers.size() < rows) {
            int offset = at + PAGE_HEADER_BYTES;
            int end = offset + header.getInt(at);
            timers.append(Arrays.copyOfRange(page.array(), offset, end));
            at = end + header.getInt(at + 4);
        }
        if (!timers.isEmpty()) {
            suffixBytes = (at + timers.size() - 1) / timers.size() - PAGE_HEADER_BYTES;
        }
        timers.pageRows = Math.min(maxRows, rows * 4);
        timers.pageRead(timers.last(), !more && at >= page.length());
    }

    private void removed(KeyGroupTimers<T> timers, int position) throws IOException {
        timers.remove(position);
        if (timers.isEmpty()) {
            removeFromHeap(timers.heapIndex);
            if (timers.isComplete()) {
                keyGroups[timers.keyGroup - range.getStartKeyGroup()] = null;
            } else {
                unread.add(timers);
            }
        } else if (position == 0) {
            siftDown(timers.heapIndex);
        }
    }

    // ---------------- the heap of key groups

    /** Timers are ordered by their rows; other elements, within a key group alone. */
    private boolean isBefore(
            long leftOrder, KeyGroupTimers<T> left, long rightOrder, KeyGroupTimers<T> right)
            throws IOException {
        if (leftOrder != rightOrder) {
            return leftOrder < rightOrder;
        }
        return orderedByRows
                ? Arrays.compareUnsigned(left.first(), right.first()) < 0
                : head(left).comparePriorityTo(head(right)) < 0;
    }

    private long order(KeyGroupTimers<T> timers) {
        return orderedByRows ? timers.order() : 0;
    }

    private void push(KeyGroupTimers<T> timers) throws IOException {
        if (heapSize == heap.length) {
            heap = Arrays.copyOf(heap, Math.min(keyGroups.length, heap.length * 2));
            orders = Arrays.copyOf(orders, heap.length);
        }
        heap[heapSize] = timers;
        siftUp(heapSize++);
    }

    private void removeFromHeap(int index) throws IOException {
        heap[index].heapIndex = -1;
        KeyGroupTimers<T> last = heap[--heapSize];
        heap[heapSize] = null;
        if (index < heapSize) {
            heap[index] = last;
            siftUp(index);
            siftDown(last.heapIndex);
        }
    }

    private void siftUp(int index) throws IOException {
        KeyGroupTimers<T> timers = heap[index];
        long order = order(timers);
        int at = index;
        while (at > 0) {
            int parent = (at - 1) >>> 1;
            if (!isBefore(order, timers, orders[parent], heap[parent])) {
                break;
            }
            place(at, heap[parent], orders[parent]);
            at = parent;
        }
        place(at, timers, order);
    }

    private void siftDown(int index) throws IOException {
        KeyGroupTimers<T> timers = heap[index];
        long order = order(timers);
        int at = index;
        while (true) {
            int child = 2 * at + 1;
            if (child >= heapSize) {
                break;
            }
            int other = child + 1;
            if (other < heapSize
                    && isBefore(orders[other], heap[other], orders[child], heap[child])) {
                child = other;
            }
            if (!isBefore(orders[child], heap[child], order, timers)) {
                break;
            }
            place(at, heap[child], orders[child]);
            at = child;
        }
        place(at, timers, order);
    }

    private void place(int index, KeyGroupTimers<T> timers, long order) {
        heap[index] = timers;
        orders[index] = order;
        timers.heapIndex = index;
    }

    private FlinkRuntimeException failed(String what, IOException e) {
        return new FlinkRuntimeException(
                String.format("Timers of queue '%s' could not be %s.", name, what), e);
    }

    /** The timers of some key groups: those on the heap, then those that only the engine has. */
    private final class Elements implements CloseableIterator<T> {
        private final int end;
        private int index;
        private byte[][] cached = {};
        private int position;
        private GroupCursor rows;
        private T next;

        Elements(int first, int end) {
            this.index = first;
            this.end = end;
        }

        @Override
        public boolean hasNext() {
            try {
                while (next == null && advance()) {
                    // Goes on to the next key group.
                }
                return next != null;
            } catch (IOException e) {
                throw failed("read", e);
            }
        }

        /** Looks for the next timer one step further; false behind the last key group. */
        private boolean advance() throws IOException {
            if (position < cached.length) {
                byte[] suffix = cached[position++];
                next = decode(suffix, 0, suffix.length);
                return true;
            }
            if (rows != null) {
                if (rows.next()) {
                    next = decode(rows.array(), rows.suffixOffset(), rows.suffixEnd());
                } else {
                    rows = null;
                }
                return true;
            }
            if (index >= end) {
                return false;
            }
            KeyGroupTimers<T> timers = keyGroups[index++];
            if (timers != null) {
                cached = timers.toArray();
                position = 0;
                rows = timers.isComplete() ? null : rowsBehind(timers);
            }
            return true;
        }

        @Override
        public T next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            T element = next;
            next = null;
            return element;
        }

        /** Holds nothing open. */
        @Override
        public void close() {}
    }
}
