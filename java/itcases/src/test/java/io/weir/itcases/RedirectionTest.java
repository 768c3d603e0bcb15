package io.weir.itcases;

import static org.assertj.core.api.Assertions.assertThat;

import io.weir.flink.WeirStateBackend;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.runtime.state.StateBackendLoader;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Without it Flink's tests beside this one would pass, and say nothing. */
class RedirectionTest {

    @ParameterizedTest
    @ValueSource(strings = {"rocksdb", "forst"})
    void flinksNativeBackendsAreWeir(String name) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set(StateBackendOptions.STATE_BACKEND, name);
        assertThat(
                        StateBackendLoader.loadStateBackendFromConfig(
                                configuration, getClass().getClassLoader(), null))
                .isInstanceOf(WeirStateBackend.class);
    }
}
