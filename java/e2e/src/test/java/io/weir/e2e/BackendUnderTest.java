package io.weir.e2e;

import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.runtime.state.StateBackend;
import org.apache.flink.runtime.state.StateBackendLoader;

import java.nio.file.Path;

/**
 * Which state backend the tests run on: Weir, or with {@code -Dweir.test.backend=hashmap} (or
 * {@code rocksdb}) one of Flink's, to tell a wrong test from a wrong backend.
 */
public final class BackendUnderTest {
    private static final String WEIR = "io.weir.flink.WeirStateBackendFactory";

    public static final String NAME = System.getProperty("weir.test.backend", WEIR);

    private BackendUnderTest() {}

    public static boolean isWeir() {
        return NAME.equals(WEIR);
    }

    /**
     * A configuration that names the backend, with a working set of the given size, such as {@code
     * 64kb}.
     */
    public static Configuration configuration(String workingSet) {
        Configuration configuration = new Configuration();
        configuration.set(StateBackendOptions.STATE_BACKEND, NAME);
        configuration.set(CheckpointingOptions.INCREMENTAL_CHECKPOINTS, true);
        if (isWeir()) {
            configuration.setString("state.backend.weir.memory.working-set", workingSet);
        }
        return configuration;
    }

    /** A backend that keeps its store in {@code directory}. */
    public static StateBackend load(String workingSet, Path directory) throws Exception {
        Configuration configuration = configuration(workingSet);
        if (isWeir()) {
            configuration.setString(
                    "state.backend.weir.directory", directory.resolve("weir").toUri().toString());
        }
        return load(configuration);
    }

    public static StateBackend load(Configuration configuration) throws Exception {
        return StateBackendLoader.loadStateBackendFromConfig(
                configuration, BackendUnderTest.class.getClassLoader(), null);
    }
}
