package io.weir.e2e;

import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.runtime.state.StateBackend;
import org.apache.flink.runtime.state.StateBackendLoader;

import java.nio.file.Path;

/**
 * Which state backend the tests run on: Weir, or with {@code -Dweir.test.backend=hashmap} (or
 * {@code rocksdb}) one of Flink's, to tell a wrong test from a wrong backend. Weir keeps its rows
 * in the embedded store, or with {@code -Dweir.test.fluss=HOST:PORT} in that Fluss cluster, which
 * may have one tablet server and ask for a user's name and password ({@code weir.test.fluss.user},
 * {@code weir.test.fluss.password}).
 */
public final class BackendUnderTest {
    private static final String WEIR = "io.weir.flink.WeirStateBackendFactory";

    public static final String NAME = System.getProperty("weir.test.backend", WEIR);

    /** Bootstrap servers of the Fluss cluster, or null. */
    public static final String FLUSS = System.getProperty("weir.test.fluss");

    public static final String FLUSS_USER = System.getProperty("weir.test.fluss.user");
    public static final String FLUSS_PASSWORD = System.getProperty("weir.test.fluss.password");

    /** Of this process alone. */
    public static final String FLUSS_DATABASE = "e2e-" + ProcessHandle.current().pid();

    private BackendUnderTest() {}

    public static boolean isWeir() {
        return NAME.equals(WEIR);
    }

    public static boolean isOnFluss() {
        return isWeir() && FLUSS != null;
    }

    /** On files, which a test may look at. */
    public static boolean isEmbedded() {
        return isWeir() && FLUSS == null;
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
        if (isOnFluss()) {
            configuration.setString("state.backend.weir.store", "fluss");
            configuration.setString("state.backend.weir.fluss.bootstrap-servers", FLUSS);
            configuration.setString("state.backend.weir.fluss.database", FLUSS_DATABASE);
            configuration.setString("state.backend.weir.fluss.buckets", "2");
            configuration.setString("state.backend.weir.fluss.replication", "1");
        }
        configuration.addAll(clusterConfiguration());
        return configuration;
    }

    /** What a JobManager has to know beforehand, to give back what checkpoints held. */
    public static Configuration clusterConfiguration() {
        Configuration configuration = new Configuration();
        if (isOnFluss() && FLUSS_USER != null) {
            configuration.setString("state.backend.weir.fluss.sasl.username", FLUSS_USER);
            configuration.setString("state.backend.weir.fluss.sasl.password", FLUSS_PASSWORD);
        }
        return configuration;
    }

    /** A backend that keeps an embedded store in {@code directory}. */
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
