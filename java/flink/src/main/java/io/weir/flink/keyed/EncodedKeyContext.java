package io.weir.flink.keyed;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.RowKey;

import org.apache.flink.runtime.state.InternalKeyContextImpl;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.util.Preconditions;

import java.io.IOException;

/**
 * The current key, with its encoding: written once when the first state of a record is accessed and
 * shared by all states, which differ only in the state id.
 */
public final class EncodedKeyContext<K> extends InternalKeyContextImpl<K> {

    private final KeyCodec<K> codec;
    private final RowKey row = new RowKey();
    private int keyEnd;
    private boolean stale = true;

    public EncodedKeyContext(KeyGroupRange range, int numberOfKeyGroups, KeyCodec<K> codec) {
        super(range, numberOfKeyGroups);
        this.codec = codec;
    }

    public KeyCodec<K> codec() {
        return codec;
    }

    @Override
    public void setCurrentKey(K key) {
        super.setCurrentKey(key);
        stale = true;
    }

    @Override
    public void setCurrentKeyGroupIndex(int keyGroup) {
        super.setCurrentKeyGroupIndex(keyGroup);
        stale = true;
    }

    /**
     * The row key of the current key in a state, without namespace; it is shared, and valid until
     * the next call.
     *
     * @throws NullPointerException if there is no current key
     */
    public RowKey row(int stateId) throws IOException {
        if (stale) {
            encode();
        }
        row.truncate(keyEnd);
        row.setStateId(stateId);
        return row;
    }

    private void encode() throws IOException {
        K key =
                Preconditions.checkNotNull(
                        getCurrentKey(),
                        "No key is set: keyed state can be used only while a record of a keyed"
                                + " stream is processed.");
        row.start(getCurrentKeyGroupIndex());
        codec.write(key, row);
        keyEnd = row.length();
        stale = false;
    }
}
