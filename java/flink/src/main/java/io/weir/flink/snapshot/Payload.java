package io.weir.flink.snapshot;

import io.weir.flink.errors.CorruptHandleException;
import io.weir.flink.errors.HandleFormatException;

import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyedBackendSerializationProxy;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.zip.CRC32;

/**
 * What a checkpoint's handle says of one subtask's keyed state. Its size does not depend on the
 * rows.
 *
 * <p>Bytes: magic {@code WEIR}, format version u16, CRC-32 of the rest u32, then the fields in the
 * order of {@link #write}, all big-endian, strings in Java's modified UTF-8; last, Flink's own
 * serializer snapshots.
 */
public final class Payload {

    /**
     * The format that this class writes and reads: 3. In 1 queues of timers had no rows, in 2 a row
     * of a list was one element; both came before the first release.
     */
    public static final int FORMAT = 3;

    private static final byte[] MAGIC = {'W', 'E', 'I', 'R'};
    private static final int HEADER_BYTES = MAGIC.length + Short.BYTES + Integer.BYTES;

    /** Which columns the keys of a state, or the timers of a queue, are written in. */
    public static final class StateColumns {
        public final String name;
        public final String namespaceCodec;
        public final String userKeyCodec;

        public StateColumns(String name, String namespaceCodec, String userKeyCodec) {
            this.name = name;
            this.namespaceCodec = namespaceCodec;
            this.userKeyCodec = userKeyCodec;
        }
    }

    public final String root;
    public final String branch;
    public final String version;
    public final long checkpoint;
    public final KeyGroupRange range;
    public final int numberOfKeyGroups;
    public final long nextSequence;
    public final String keyCodec;
    public final List<StateColumns> states;
    private final byte[] serializers;

    /**
     * @param serializers the written form of a {@link KeyedBackendSerializationProxy}
     */
    public Payload(
            String root,
            String branch,
            String version,
            long checkpoint,
            KeyGroupRange range,
            int numberOfKeyGroups,
            long nextSequence,
            String keyCodec,
            List<StateColumns> states,
            byte[] serializers) {
        this.root = root;
        this.branch = branch;
        this.version = version;
        this.checkpoint = checkpoint;
        this.range = range;
        this.numberOfKeyGroups = numberOfKeyGroups;
        this.nextSequence = nextSequence;
        this.keyCodec = keyCodec;
        this.states = states;
        this.serializers = serializers;
    }

    public byte[] write() throws IOException {
        DataOutputSerializer out = new DataOutputSerializer(512 + serializers.length);
        out.write(MAGIC);
        out.writeShort(FORMAT);
        out.writeInt(0);
        out.writeUTF(root);
        out.writeUTF(branch);
        out.writeUTF(version);
        out.writeLong(checkpoint);
        out.writeInt(range.getStartKeyGroup());
        out.writeInt(range.getEndKeyGroup());
        out.writeInt(numberOfKeyGroups);
        out.writeLong(nextSequence);
        out.writeUTF(keyCodec);
        out.writeInt(states.size());
        for (StateColumns state : states) {
            out.writeUTF(state.name);
            out.writeUTF(state.namespaceCodec);
            out.writeUTF(state.userKeyCodec);
        }
        out.writeInt(serializers.length);
        out.write(serializers);
        byte[] payload = out.getCopyOfBuffer();
        int checksum = checksum(payload);
        for (int i = 0; i < Integer.BYTES; i++) {
            payload[HEADER_BYTES - 1 - i] = (byte) (checksum >>> 8 * i);
        }
        return payload;
    }

    private static int checksum(byte[] payload) {
        CRC32 crc = new CRC32();
        crc.update(payload, HEADER_BYTES, payload.length - HEADER_BYTES);
        return (int) crc.getValue();
    }

    /**
     * Reads a payload.
     *
     * @param handle names the handle in errors
     * @throws CorruptHandleException if the payload is truncated or damaged, or not Weir's at all
     * @throws HandleFormatException if a newer release wrote it
     */
    public static Payload read(byte[] payload, String handle)
            throws CorruptHandleException, HandleFormatException {
        if (payload.length < HEADER_BYTES
                || !Arrays.equals(payload, 0, MAGIC.length, MAGIC, 0, MAGIC.length)) {
            throw new CorruptHandleException(
                    "Handle "
                            + handle
                            + " was not written by Weir, or is damaged: it does not begin with"
                            + " WEIR.");
        }
        DataInputDeserializer in = new DataInputDeserializer(payload);
        try {
            in.skipBytesToRead(MAGIC.length);
            int format = in.readUnsignedShort();
            if (format != FORMAT) {
                throw new HandleFormatException(
                        String.format(
                                "Handle %s has format version %d, and this release reads version"
                                    + " %d. Take a canonical savepoint with the release that wrote"
                                    + " it, and restore from that.",
                                handle, format, FORMAT));
            }
            if (in.readInt() != checksum(payload)) {
                throw new CorruptHandleException(
                        "Handle "
                                + handle
                                + " is truncated or damaged: its checksum does not match.");
            }
            String root = in.readUTF();
            String branch = in.readUTF();
            String version = in.readUTF();
            long checkpoint = in.readLong();
            KeyGroupRange range = KeyGroupRange.of(in.readInt(), in.readInt());
            int numberOfKeyGroups = in.readInt();
            long nextSequence = in.readLong();
            String keyCodec = in.readUTF();
            int count = in.readInt();
            List<StateColumns> states = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                states.add(new StateColumns(in.readUTF(), in.readUTF(), in.readUTF()));
            }
            byte[] serializers = new byte[in.readInt()];
            in.readFully(serializers);
            return new Payload(
                    root,
                    branch,
                    version,
                    checkpoint,
                    range,
                    numberOfKeyGroups,
                    nextSequence,
                    keyCodec,
                    states,
                    serializers);
        } catch (CorruptHandleException | HandleFormatException e) {
            throw e;
        } catch (IOException | RuntimeException e) {
            throw new CorruptHandleException("Handle " + handle + " is damaged: " + e);
        }
    }

    /** The serializer snapshots of the key and of all states, timers included. */
    public <K> KeyedBackendSerializationProxy<K> serializers(ClassLoader userCodeClassLoader)
            throws IOException {
        KeyedBackendSerializationProxy<K> proxy =
                new KeyedBackendSerializationProxy<>(userCodeClassLoader);
        proxy.read(new DataInputDeserializer(serializers));
        return proxy;
    }

    /**
     * The columns of a state's keys, or of a queue's timers in the place of namespaces; null if
     * there are no rows, as of timers on the heap.
     */
    public StateColumns columns(String state) {
        for (StateColumns columns : states) {
            if (columns.name.equals(state)) {
                return columns;
            }
        }
        return null;
    }
}
