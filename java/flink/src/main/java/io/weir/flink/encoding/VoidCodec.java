package io.weir.flink.encoding;

import org.apache.flink.runtime.state.VoidNamespace;

/** No columns at all. */
final class VoidCodec implements KeyCodec<VoidNamespace> {

    @Override
    public String id() {
        return "void";
    }

    @Override
    public void write(VoidNamespace value, RowKey target) {}

    @Override
    public VoidNamespace read(RowKeyReader source) {
        return VoidNamespace.INSTANCE;
    }

    @Override
    public void skip(RowKeyReader source) {}
}
