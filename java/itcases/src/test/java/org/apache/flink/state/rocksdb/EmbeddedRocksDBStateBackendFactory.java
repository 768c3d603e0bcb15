package org.apache.flink.state.rocksdb;

import io.weir.flink.WeirStateBackend;
import io.weir.flink.WeirStateBackendFactory;

import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.runtime.state.StateBackendFactory;

/**
 * Lies before RocksDB's factory on the class path: a test of Flink's that asks for the backend
 * {@code rocksdb} gets Weir.
 */
public class EmbeddedRocksDBStateBackendFactory implements StateBackendFactory<WeirStateBackend> {

    @Override
    public WeirStateBackend createFromConfig(ReadableConfig config, ClassLoader classLoader) {
        return new WeirStateBackendFactory().createFromConfig(config, classLoader);
    }
}
