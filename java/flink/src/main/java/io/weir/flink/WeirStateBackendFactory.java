package io.weir.flink;

import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.runtime.state.StateBackendFactory;

/**
 * Makes the backend from Flink's configuration:
 *
 * <pre>state.backend.type: io.weir.flink.WeirStateBackendFactory</pre>
 *
 * <p>The whole class name is needed: Flink knows short names only of its own backends and takes any
 * other value for the class name of a factory.
 */
public final class WeirStateBackendFactory implements StateBackendFactory<WeirStateBackend> {

    @Override
    public WeirStateBackend createFromConfig(ReadableConfig config, ClassLoader classLoader) {
        return new WeirStateBackend().configure(config, classLoader);
    }
}
