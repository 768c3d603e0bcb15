package io.weir.flink;

import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.configuration.MemorySize;

import java.time.Duration;

/**
 * The options of the state backend; {@link WeirOptionsDocs} turns them into {@code
 * docs/options.md}.
 */
public final class WeirOptions {

    /** What all keys begin with. */
    static final String PREFIX = "state.backend.weir.";

    /** Where the rows of a job are kept. */
    public enum Store {
        /** SlateDB, inside the TaskManager's process, on the files of {@link #DIRECTORY}. */
        EMBEDDED,
        /** Tables of the Apache Fluss cluster at {@link #FLUSS_BOOTSTRAP_SERVERS}. */
        FLUSS,
        /** The memory of the process, for tests: a restart of the process loses everything. */
        MEMORY
    }

    /** Where timers are kept. */
    public enum TimerService {
        /** In the engine: in memory within the budget, the rest in the store. */
        ENGINE,
        /** On the Java heap. */
        HEAP
    }

    public static final ConfigOption<Store> STORE =
            ConfigOptions.key(PREFIX + "store")
                    .enumType(Store.class)
                    .defaultValue(Store.EMBEDDED)
                    .withDescription(
                            "Where the rows of a job are kept: 'embedded' in SlateDB, inside the"
                                + " TaskManagers, on the files of 'state.backend.weir.directory';"
                                + " 'fluss' in tables of the Apache Fluss cluster at"
                                + " 'state.backend.weir.fluss.bootstrap-servers'; 'memory' in the"
                                + " memory of the process, for tests. Options of a store that is"
                                + " not chosen have no effect.");

    public static final ConfigOption<String> DIRECTORY =
            ConfigOptions.key(PREFIX + "directory")
                    .stringType()
                    .noDefaultValue()
                    .withDescription(
                            "Directory of the store, which every TaskManager and the JobManager"
                                + " must reach under the same name; file:// only. Without it, the"
                                + " directory 'weir' under 'execution.checkpointing.dir'.");

    public static final ConfigOption<Boolean> USE_MANAGED_MEMORY =
            ConfigOptions.key(PREFIX + "memory.managed")
                    .booleanType()
                    .defaultValue(true)
                    .withDescription(
                            "Whether the memory budget of a slot is its share of Flink's managed"
                                    + " memory. Rows, indexes and the store's own memory count; the"
                                    + " operators of a slot share one budget.");

    public static final ConfigOption<MemorySize> FIXED_MEMORY_PER_SLOT =
            ConfigOptions.key(PREFIX + "memory.fixed-per-slot")
                    .memoryType()
                    .noDefaultValue()
                    .withDescription(
                            "Memory budget of a slot, beside Flink's managed memory and instead of"
                                    + " it: overrides 'state.backend.weir.memory.managed'.");

    public static final ConfigOption<MemorySize> WORKING_SET =
            ConfigOptions.key(PREFIX + "memory.working-set")
                    .memoryType()
                    .noDefaultValue()
                    .withDescription(
                            "The most that one subtask of one operator may hold of the budget."
                                    + " Without it, only the budget of the slot bounds it.");

    public static final ConfigOption<Double> MAX_DIRTY_RATIO =
            ConfigOptions.key(PREFIX + "memory.max-dirty-ratio")
                    .doubleType()
                    .defaultValue(0.25)
                    .withDescription(
                            "Share of the budget that the rows of one subtask of one operator may"
                                + " take which are not in the store yet. From half of it on they"
                                + " are written between checkpoints; at all of it the operator"
                                + " waits for the store. Greater than 0 and at most 0.9.");

    public static final ConfigOption<Duration> STORE_TIMEOUT =
            ConfigOptions.key(PREFIX + "store.timeout")
                    .durationType()
                    .defaultValue(Duration.ofSeconds(60))
                    .withDescription(
                            "How long a call of the store may keep failing and be repeated before"
                                    + " the task fails.");

    public static final ConfigOption<Integer> RUNTIME_THREADS =
            ConfigOptions.key(PREFIX + "runtime.threads")
                    .intType()
                    .defaultValue(2)
                    .withDescription(
                            "Native threads of a process that write and compact, shared by all its"
                                + " backends; the first backend of a process decides. 1 to 64.");

    public static final ConfigOption<Duration> GC_MIN_AGE =
            ConfigOptions.key(PREFIX + "embedded.gc.min-age")
                    .durationType()
                    .defaultValue(Duration.ofMinutes(5))
                    .withDescription(
                            "Age below which the embedded store deletes no file. Has to be longer"
                                    + " than any pause of a process that still works on the"
                                    + " directory.");

    public static final ConfigOption<String> FLUSS_BOOTSTRAP_SERVERS =
            ConfigOptions.key(PREFIX + "fluss.bootstrap-servers")
                    .stringType()
                    .noDefaultValue()
                    .withDescription(
                            "Servers of the Fluss cluster, as 'host:port', separated by commas."
                                + " Checkpoints name them, and the JobManager releases old ones"
                                + " there: choose names that last. Needed with the store 'fluss'.");

    public static final ConfigOption<String> FLUSS_DATABASE =
            ConfigOptions.key(PREFIX + "fluss.database")
                    .stringType()
                    .defaultValue("weir")
                    .withDescription(
                            "The database of Fluss that holds the tables of all jobs; made if it is"
                                    + " missing.");

    public static final ConfigOption<Integer> FLUSS_BUCKETS =
            ConfigOptions.key(PREFIX + "fluss.buckets")
                    .intType()
                    .defaultValue(8)
                    .withDescription(
                            "Buckets of each table of rows that is made, one table an operator;"
                                    + " each costs the servers memory. 1 to 16. A table keeps the"
                                    + " number it was made with.");

    public static final ConfigOption<Integer> FLUSS_REPLICATION =
            ConfigOptions.key(PREFIX + "fluss.replication")
                    .intType()
                    .defaultValue(3)
                    .withDescription(
                            "Replicas of each table that is made; an existing one with fewer is"
                                    + " refused. With 1, a crash of a server can lose what it had"
                                    + " acknowledged: that is noticed, and fails the job.");

    public static final ConfigOption<String> FLUSS_USER =
            ConfigOptions.key(PREFIX + "fluss.sasl.username")
                    .stringType()
                    .noDefaultValue()
                    .withDescription(
                            "User for SASL/PLAIN; without it Weir connects in plain text. The"
                                + " JobManager needs user and password in its own configuration.");

    public static final ConfigOption<String> FLUSS_PASSWORD =
            ConfigOptions.key(PREFIX + "fluss.sasl.password")
                    .stringType()
                    .noDefaultValue()
                    .withDescription("Password for SASL/PLAIN.");

    public static final ConfigOption<TimerService> TIMER_SERVICE =
            ConfigOptions.key(PREFIX + "timer-service.factory")
                    .enumType(TimerService.class)
                    .defaultValue(TimerService.ENGINE)
                    .withDescription(
                            "Where timers are kept: 'engine', as rows beside those of the state,"
                                + " within the memory budget and else in the store; 'heap', all on"
                                + " the Java heap, from where Flink writes them in the synchronous"
                                + " part of a checkpoint. A restore moves them if it changes.");

    private WeirOptions() {}
}
