package io.weir.flink;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.weir.flink.errors.InvalidArgumentException;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.GlobalConfiguration;
import org.apache.flink.configuration.IllegalConfigurationException;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.runtime.state.StateBackend;
import org.apache.flink.runtime.state.StateBackendLoader;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

import java.util.List;

class WeirConfigTest {

    private static Configuration with(String key, String value) {
        Configuration configuration = new Configuration();
        configuration.setString(key, value);
        return configuration;
    }

    @ParameterizedTest
    @CsvSource({
        "state.backend.weir.store, rocksdb, 'embedded' or 'fluss' or 'memory'",
        "state.backend.weir.fluss.bootstrap-servers, somewhere, host:port",
        "state.backend.weir.fluss.bootstrap-servers, 'one:9123,,two:9123', host:port",
        "state.backend.weir.fluss.bootstrap-servers, fluss://one:9123, host:port",
        "state.backend.weir.fluss.database, a.b, letters",
        "state.backend.weir.fluss.database, __weir, letters",
        "state.backend.weir.fluss.buckets, 0, from 1 to 16",
        "state.backend.weir.fluss.buckets, 17, from 1 to 16",
        "state.backend.weir.fluss.replication, 0, number of tablet servers",
        "state.backend.weir.fluss.sasl.username, ' ', a user's name",
        "state.backend.weir.directory, '  ', absolute directory",
        "state.backend.weir.directory, some/where, absolute directory",
        "state.backend.weir.directory, hdfs://nowhere/weir, file://",
        "execution.checkpointing.dir, hdfs://nowhere/checkpoints, file://",
        "state.backend.weir.memory.managed, perhaps, true or false",
        "state.backend.weir.memory.fixed-per-slot, 0, greater than 0",
        "state.backend.weir.memory.fixed-per-slot, much, greater than 0",
        "state.backend.weir.memory.working-set, -1 mb, greater than 0",
        "state.backend.weir.memory.max-dirty-ratio, 0, at most 0.9",
        "state.backend.weir.memory.max-dirty-ratio, 1.5, at most 0.9",
        "state.backend.weir.memory.max-dirty-ratio, half, at most 0.9",
        "state.backend.weir.memory.max-dirty-ratio, NaN, at most 0.9",
        "state.backend.weir.store.timeout, 0 s, longer than 0",
        "state.backend.weir.store.timeout, -1 s, longer than 0",
        "state.backend.weir.store.timeout, soon, longer than 0",
        "state.backend.weir.runtime.threads, 0, from 1 to 64",
        "state.backend.weir.runtime.threads, 65, from 1 to 64",
        "state.backend.weir.runtime.threads, two, from 1 to 64",
        "state.backend.weir.embedded.gc.min-age, never, a duration",
        "state.backend.weir.timer-service.factory, rocksdb, 'engine' or 'heap'"
    })
    void aWrongValueIsRefusedWithOptionValueAndWhatIsAllowed(
            String key, String value, String allowed) {
        Configuration configuration = with(key, value);
        assertThatThrownBy(() -> WeirConfig.of(configuration))
                .isInstanceOf(IllegalConfigurationException.class)
                .hasMessageContaining(key)
                .hasMessageContaining(value)
                .hasMessageContaining(allowed);
    }

    private static Configuration onFluss() {
        Configuration configuration = with("state.backend.weir.store", "fluss");
        configuration.setString("state.backend.weir.fluss.bootstrap-servers", "one:9123, two:9123");
        return configuration;
    }

    @Test
    void flussNeedsServersAndNoDirectory() throws Exception {
        assertThatThrownBy(() -> WeirConfig.of(with("state.backend.weir.store", "fluss")))
                .isInstanceOf(IllegalConfigurationException.class)
                .hasMessageContaining("state.backend.weir.fluss.bootstrap-servers is not set")
                .hasMessageContaining("host:port");
        Configuration configuration = onFluss();
        configuration.setString("execution.checkpointing.interval", "10 s");
        configuration.setString("execution.checkpointing.dir", "hdfs://nowhere/checkpoints");
        configuration.setString("state.backend.weir.directory", "not used");
        WeirConfig config = WeirConfig.of(configuration);
        StoreDirectory directory = StoreDirectory.resolve(config, null, new String[0]);
        assertThat(directory.uri()).isEqualTo("fluss://one:9123,two:9123/weir");
        assertThat(directory.isTemporary()).isFalse();
        assertThat(config.engineConfig(64 << 20))
                .containsSubsequence("fluss.buckets", "8", "fluss.replication", "3")
                .containsSubsequence("fluss.remembered-keys", "131072")
                .doesNotContain("slatedb.gc.min-age-ms", "fluss.user", "fluss.password");
        assertThat(config.engineConfig(1000)).containsSubsequence("fluss.remembered-keys", "1024");
    }

    @Test
    void aPasswordIsASecret() throws Exception {
        assertThat(GlobalConfiguration.isSensitive(WeirOptions.FLUSS_PASSWORD.key())).isTrue();
        Configuration configuration = onFluss();
        configuration.setString("state.backend.weir.fluss.sasl.password", "hunter2");
        assertThatThrownBy(() -> WeirConfig.of(configuration))
                .isInstanceOf(IllegalConfigurationException.class)
                .hasMessageContaining("state.backend.weir.fluss.sasl.username is not set")
                .hasMessageNotContaining("hunter2");
        configuration.setString("state.backend.weir.fluss.sasl.username", "flink");
        assertThat(configuration.toString()).contains("flink").doesNotContain("hunter2");
        WeirConfig config = WeirConfig.of(configuration);
        assertThat(config.toString()).doesNotContain("hunter2");
        assertThat(config.engineConfig(1000))
                .containsSubsequence("fluss.user", "flink", "fluss.password", "hunter2");
        String root = StoreDirectory.resolve(config, null, new String[0]).uri();
        assertThat(root).doesNotContain("flink").doesNotContain("hunter2");
        assertThat(config.releaseConfig(root)).contains("hunter2");
        assertThat(config.releaseConfig("file:///checkpoints/weir")).doesNotContain("hunter2");

        configuration.removeKey("state.backend.weir.fluss.sasl.password");
        assertThatThrownBy(() -> WeirConfig.of(configuration))
                .isInstanceOf(IllegalConfigurationException.class)
                .hasMessageContaining("state.backend.weir.fluss.sasl.password is not set")
                .hasMessageContaining("'flink'");
    }

    @Test
    void aCheckpointOfAnotherStoreOrDatabaseIsRefused() throws Exception {
        StoreDirectory fluss =
                StoreDirectory.resolve(WeirConfig.of(onFluss()), null, new String[0]);
        for (String root : new String[] {"file:///checkpoints/weir", "memory://weir"}) {
            assertThatThrownBy(() -> fluss.toGoOnFrom(root))
                    .isInstanceOf(InvalidArgumentException.class)
                    .hasMessageContaining(root)
                    .hasMessageContaining("state.backend.weir.store is 'fluss'");
        }
        assertThatThrownBy(() -> fluss.toGoOnFrom("fluss://one:9123,two:9123/other"))
                .isInstanceOf(InvalidArgumentException.class)
                .hasMessageContaining("state.backend.weir.fluss.database");
        // The same servers by other names.
        assertThat(fluss.toGoOnFrom("fluss://three:9123/weir")).isEqualTo(fluss.uri());

        Configuration inMemory = with("state.backend.weir.store", "memory");
        StoreDirectory memory =
                StoreDirectory.resolve(WeirConfig.of(inMemory), null, new String[0]);
        assertThatThrownBy(() -> memory.toGoOnFrom(fluss.uri()))
                .isInstanceOf(InvalidArgumentException.class)
                .hasMessageContaining("set the option to 'fluss'");
    }

    @Test
    void checkpointsNeedADirectory() {
        Configuration configuration = with("execution.checkpointing.interval", "10 s");
        assertThatThrownBy(() -> WeirConfig.of(configuration))
                .isInstanceOf(IllegalConfigurationException.class)
                .hasMessageContaining("execution.checkpointing.dir")
                .hasMessageContaining("state.backend.weir.directory");
        configuration.setString("execution.runtime-mode", "BATCH"); // which takes none
        assertThat(WeirConfig.of(configuration).checkpointing()).isFalse();
        configuration.setString("execution.runtime-mode", "STREAMING");
        configuration.setString("execution.checkpointing.dir", "file:///some/where");
        assertThat(WeirConfig.of(configuration).checkpointing()).isTrue();
    }

    @Test
    void defaultsAreHandedToTheEngine() {
        List<String> config = WeirConfig.of(new Configuration()).engineConfig(1000);
        assertThat(config)
                .containsExactly(
                        "store.timeout-ms",
                        "60000",
                        "runtime.threads",
                        "2",
                        "slatedb.gc.min-age-ms",
                        "300000",
                        "engine.max-dirty-bytes",
                        "250");
        assertThat(
                        WeirConfig.of(with("state.backend.weir.memory.working-set", "3 mb"))
                                .engineConfig(1000))
                .containsSequence("engine.working-set-bytes", Integer.toString(3 << 20));
    }

    @Test
    void flinkFindsTheBackendByTheNameOfItsFactory() throws Exception {
        Configuration configuration =
                with(
                        StateBackendOptions.STATE_BACKEND.key(),
                        WeirStateBackendFactory.class.getName());
        StateBackend backend =
                StateBackendLoader.loadStateBackendFromConfig(
                        configuration, getClass().getClassLoader(), null);
        assertThat(backend).isInstanceOf(WeirStateBackend.class);
        assertThat(backend.useManagedMemory()).isTrue();
        configuration.setString(WeirOptions.FIXED_MEMORY_PER_SLOT.key(), "64 mb");
        assertThat(
                        new WeirStateBackendFactory()
                                .createFromConfig(configuration, null)
                                .useManagedMemory())
                .isFalse();
        configuration.setString(WeirOptions.RUNTIME_THREADS.key(), "many");
        assertThatThrownBy(
                        () -> new WeirStateBackendFactory().createFromConfig(configuration, null))
                .isInstanceOf(IllegalConfigurationException.class);
    }

    @Test
    void misspeltOptionsAreToldWithTheNearestName() {
        assertThat(
                        UnknownOptions.warnings(
                                List.of(
                                        "state.backend.weir.memory.workingset",
                                        "state.backend.weir.store.timeout",
                                        "state.backend.type",
                                        "state.backend.weir.timeout")))
                .containsExactly(
                        "Option 'state.backend.weir.memory.workingset' does not exist and has no"
                                + " effect. Did you mean 'state.backend.weir.memory.working-set'?",
                        "Option 'state.backend.weir.timeout' does not exist and has no effect. Did"
                                + " you mean 'state.backend.weir.store.timeout'?");
        assertThat(UnknownOptions.warnings(UnknownOptions.known())).isEmpty();
    }

    @Test
    void theOptionsPageNamesEveryOption() throws Exception {
        String page = WeirOptionsDocs.page();
        assertThat(page)
                .contains("`state.backend.weir.store` | embedded | `embedded`, `fluss`, `memory` |")
                .contains("`state.backend.weir.store.timeout` | 1 min | duration |")
                .contains("`state.backend.weir.memory.fixed-per-slot` | none | memory size |");
        assertThat(page.lines().filter(line -> line.startsWith("| `")).count()).isEqualTo(16);
    }

    @Test
    void operatorsKeepTheirNameOverSubtasksAndAreSanitised() {
        assertThat(BranchNames.operator("Map_ea632d67(1/4)")).isEqualTo("Map_ea632d67_1_4_");
        assertThat(BranchNames.operator("Map_ea632d67_(1/4)")).isEqualTo("Map_ea632d67");
        assertThat(BranchNames.operator("Map_ea632d67_(12/14)")).isEqualTo("Map_ea632d67");
        assertThat(BranchNames.operator("a b/c:ü")).isEqualTo("a_b_c__");
        assertThat(BranchNames.operator("..")).isEqualTo("__");
        assertThat(BranchNames.operator("")).isEqualTo("_");
        assertThat(BranchNames.operator("x".repeat(500) + "_id"))
                .hasSizeLessThan(200)
                .endsWith("_id");
    }
}
