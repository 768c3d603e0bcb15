package io.weir.flink.keyed;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.RowKey;
import io.weir.flink.encoding.RowKeyReader;
import io.weir.flink.nativelib.Engine;

import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.util.FlinkRuntimeException;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/**
 * Streams of the keys and namespaces that have state. They hold nothing open, and the state may
 * change while they are read.
 */
final class KeyStreams<K> {

    private final Engine engine;
    private final KeyGroupRange range;
    private final KeyCodec<K> keyCodec;

    KeyStreams(Engine engine, KeyGroupRange range, KeyCodec<K> keyCodec) {
        this.engine = engine;
        this.range = range;
        this.keyCodec = keyCodec;
    }

    <N> Stream<Tuple2<K, N>> keysAndNamespaces(RegisteredState<N, ?> state) {
        PrefixCursor<N> prefixes =
                new PrefixCursor<>(state, range.getStartKeyGroup(), range.getEndKeyGroup(), null);
        return stream(
                new Lookahead<Tuple2<K, N>>() {
                    @Override
                    Tuple2<K, N> advance() throws IOException {
                        return prefixes.next()
                                ? Tuple2.of(prefixes.key(), prefixes.namespace())
                                : null;
                    }
                });
    }

    <N> Stream<K> keys(RegisteredState<N, ?> state, N namespace) {
        PrefixCursor<N> prefixes =
                new PrefixCursor<>(
                        state,
                        range.getStartKeyGroup(),
                        range.getEndKeyGroup(),
                        encode(state, namespace));
        return stream(
                new Lookahead<K>() {
                    @Override
                    K advance() throws IOException {
                        return prefixes.next() ? prefixes.key() : null;
                    }
                });
    }

    /**
     * The keys that have a value in any of the states, each once: a merge, key group by key group.
     */
    <N> Stream<K> keys(List<RegisteredState<N, ?>> states, N namespace) {
        List<byte[]> namespaces = new ArrayList<>();
        for (RegisteredState<N, ?> state : states) {
            namespaces.add(encode(state, namespace));
        }
        return stream(
                new Lookahead<K>() {
                    private int keyGroup = range.getStartKeyGroup() - 1;
                    private final List<PrefixCursor<N>> heads = new ArrayList<>();

                    @Override
                    K advance() throws IOException {
                        while (heads.isEmpty()) {
                            if (keyGroup >= range.getEndKeyGroup()) {
                                return null;
                            }
                            keyGroup++;
                            for (int i = 0; i < states.size(); i++) {
                                PrefixCursor<N> head =
                                        new PrefixCursor<>(
                                                states.get(i),
                                                keyGroup,
                                                keyGroup,
                                                namespaces.get(i));
                                if (head.next()) {
                                    heads.add(head);
                                }
                            }
                        }
                        PrefixCursor<N> smallest = heads.get(0);
                        for (PrefixCursor<N> head : heads) {
                            if (Arrays.compareUnsigned(head.keyBytes, smallest.keyBytes) < 0) {
                                smallest = head;
                            }
                        }
                        byte[] taken = smallest.keyBytes;
                        K key = smallest.key();
                        Iterator<PrefixCursor<N>> rest = heads.iterator();
                        while (rest.hasNext()) {
                            PrefixCursor<N> head = rest.next();
                            if (Arrays.equals(head.keyBytes, taken) && !head.next()) {
                                rest.remove();
                            }
                        }
                        return key;
                    }
                });
    }

    private static <N> byte[] encode(RegisteredState<N, ?> state, N namespace) {
        RowKey encoded = new RowKey();
        try {
            state.namespaceCodec().write(namespace, encoded);
        } catch (IOException e) {
            throw new FlinkRuntimeException(
                    "The namespace " + namespace + " could not be serialized.", e);
        }
        return encoded.toByteArray();
    }

    /** Moves from one (key, namespace) with rows to the next. */
    private final class PrefixCursor<N> {
        private final RowCursor rows;
        private final boolean isGroup;
        private final KeyCodec<N> namespaceCodec;
        private final byte[] wantedNamespace;
        private final RowKeyReader reader = new RowKeyReader();
        private byte[] keyBytes = {};
        private byte[] namespaceBytes = {};
        private int prefixLength;
        private boolean skip;

        /**
         * @param wantedNamespace null for every namespace
         */
        PrefixCursor(
                RegisteredState<N, ?> state,
                int firstKeyGroup,
                int lastKeyGroup,
                byte[] wantedNamespace) {
            this.rows = new RowCursor(engine, firstKeyGroup, lastKeyGroup, state.id());
            this.isGroup = state.isGroup();
            this.namespaceCodec = state.namespaceCodec();
            this.wantedNamespace = wantedNamespace;
        }

        boolean next() throws IOException {
            while (true) {
                if (skip && isGroup) {
                    rows.skip(prefixLength);
                }
                skip = rows.next();
                if (!skip) {
                    return false;
                }
                int keyOffset = rows.keyOffset() + RowKey.HEADER_BYTES;
                reader.reset(rows.array(), keyOffset, rows.keyEnd());
                keyCodec.skip(reader);
                int namespaceOffset = reader.position();
                namespaceCodec.skip(reader);
                prefixLength = reader.position() - rows.keyOffset();
                if (wantedNamespace == null
                        || Arrays.equals(
                                rows.array(),
                                namespaceOffset,
                                reader.position(),
                                wantedNamespace,
                                0,
                                wantedNamespace.length)) {
                    keyBytes = Arrays.copyOfRange(rows.array(), keyOffset, namespaceOffset);
                    namespaceBytes =
                            Arrays.copyOfRange(rows.array(), namespaceOffset, reader.position());
                    return true;
                }
            }
        }

        K key() throws IOException {
            reader.reset(keyBytes, 0, keyBytes.length);
            return keyCodec.read(reader);
        }

        N namespace() throws IOException {
            reader.reset(namespaceBytes, 0, namespaceBytes.length);
            return namespaceCodec.read(reader);
        }
    }

    private static <T> Stream<T> stream(Iterator<T> iterator) {
        return StreamSupport.stream(
                Spliterators.spliteratorUnknownSize(iterator, Spliterator.ORDERED), false);
    }

    private abstract static class Lookahead<T> implements Iterator<T> {
        private T next;

        /** The next element, or null behind the last one. */
        abstract T advance() throws IOException;

        @Override
        public boolean hasNext() {
            if (next == null) {
                try {
                    next = advance();
                } catch (IOException e) {
                    throw new FlinkRuntimeException("The keys of a state could not be read.", e);
                }
            }
            return next != null;
        }

        @Override
        public T next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            T result = next;
            next = null;
            return result;
        }
    }
}
