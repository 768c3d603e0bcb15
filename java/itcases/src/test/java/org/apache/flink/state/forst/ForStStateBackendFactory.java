package org.apache.flink.state.forst;

import io.weir.flink.WeirStateBackend;
import io.weir.flink.WeirStateBackendFactory;

import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.runtime.state.StateBackendFactory;

/** As the factory beside it, for tests that ask for the backend {@code forst}. */
public class ForStStateBackendFactory implements StateBackendFactory<WeirStateBackend> {

    @Override
    public WeirStateBackend createFromConfig(ReadableConfig config, ClassLoader classLoader) {
        return new WeirStateBackendFactory().createFromConfig(config, classLoader);
    }
}
