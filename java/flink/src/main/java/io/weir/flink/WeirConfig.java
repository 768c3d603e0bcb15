package io.weir.flink;

import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.IllegalConfigurationException;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.ReadableConfig;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.Serializable;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** The options, read and checked. */
public final class WeirConfig implements Serializable {

    private static final long serialVersionUID = 1L;

    private static final Logger LOG = LoggerFactory.getLogger(WeirConfig.class);

    private static final double MAX_DIRTY_RATIO = 0.9;
    private static final int MAX_THREADS = 64;
    private static final int MAX_BUCKETS = 16;
    private static final Pattern SERVERS =
            Pattern.compile("\\s*[^\\s,/]+:\\d{1,5}\\s*(,\\s*[^\\s,/]+:\\d{1,5}\\s*)*");
    private static final Pattern DATABASE = Pattern.compile("(?!__)[A-Za-z0-9_-]{1,200}");

    /** The store on Fluss remembers where keys lie, in this many bytes each. */
    private static final int REMEMBERED_KEY_BYTES = 64;

    private static final long MAX_REMEMBERED_KEYS = 1 << 20;
    private static final long MIN_REMEMBERED_KEYS = 1 << 10;

    /** The part of a slot's budget that each subtask may spend on that. */
    private static final int REMEMBERED_PART = 8;

    private final WeirOptions.Store store;
    private final String directory;
    private final String checkpointDirectory;
    private final boolean managedMemory;
    private final boolean checkpointing;
    private final Long fixedMemoryPerSlot;
    private final Long workingSet;
    private final double maxDirtyRatio;
    private final Duration storeTimeout;
    private final int runtimeThreads;
    private final Duration gcMinAge;
    private final String flussServers;
    private final String flussDatabase;
    private final int flussBuckets;
    private final int flussReplication;
    private final String flussUser;
    private final String flussPassword;
    private final WeirOptions.TimerService timerService;

    private WeirConfig(ReadableConfig config) {
        store = read(config, WeirOptions.STORE, value -> true, names(WeirOptions.Store.values()));
        directory =
                read(
                        config,
                        WeirOptions.DIRECTORY,
                        value -> !value.isBlank(),
                        "an absolute directory");
        checkpointDirectory = config.get(CheckpointingOptions.CHECKPOINTS_DIRECTORY);
        checkpointing =
                CheckpointingOptions.isCheckpointingEnabled(Configuration.fromMap(config.toMap()));
        managedMemory =
                read(config, WeirOptions.USE_MANAGED_MEMORY, value -> true, "true or false");
        fixedMemoryPerSlot = bytes(config, WeirOptions.FIXED_MEMORY_PER_SLOT);
        workingSet = bytes(config, WeirOptions.WORKING_SET);
        maxDirtyRatio =
                read(
                        config,
                        WeirOptions.MAX_DIRTY_RATIO,
                        value -> value > 0 && value <= MAX_DIRTY_RATIO,
                        "a number greater than 0 and at most " + MAX_DIRTY_RATIO);
        storeTimeout =
                read(
                        config,
                        WeirOptions.STORE_TIMEOUT,
                        value -> !value.isNegative() && !value.isZero(),
                        "a duration longer than 0, such as '60 s'");
        runtimeThreads =
                read(
                        config,
                        WeirOptions.RUNTIME_THREADS,
                        value -> value >= 1 && value <= MAX_THREADS,
                        "a whole number from 1 to " + MAX_THREADS);
        gcMinAge =
                read(
                        config,
                        WeirOptions.GC_MIN_AGE,
                        value -> value.toMillis() > 0,
                        "a duration of at least a millisecond, such as '5 min'");
        String servers =
                read(
                        config,
                        WeirOptions.FLUSS_BOOTSTRAP_SERVERS,
                        value -> SERVERS.matcher(value).matches(),
                        "host:port of one or more servers, separated by commas");
        flussServers = servers == null ? null : servers.replaceAll("\\s", "");
        flussDatabase =
                read(
                        config,
                        WeirOptions.FLUSS_DATABASE,
                        value -> DATABASE.matcher(value).matches(),
                        "up to 200 letters, digits, '_' and '-', not beginning with '__'");
        flussBuckets =
                read(
                        config,
                        WeirOptions.FLUSS_BUCKETS,
                        value -> value >= 1 && value <= MAX_BUCKETS,
                        "a whole number from 1 to " + MAX_BUCKETS);
        flussReplication =
                read(
                        config,
                        WeirOptions.FLUSS_REPLICATION,
                        value -> value >= 1,
                        "a whole number from 1 to the number of tablet servers");
        flussUser =
                read(config, WeirOptions.FLUSS_USER, value -> !value.isBlank(), "a user's name");
        flussPassword = config.get(WeirOptions.FLUSS_PASSWORD);
        timerService =
                read(
                        config,
                        WeirOptions.TIMER_SERVICE,
                        value -> true,
                        names(WeirOptions.TimerService.values()));
    }

    /**
     * Reads all options.
     *
     * @throws IllegalConfigurationException naming the option, its value and what is allowed
     */
    public static WeirConfig of(ReadableConfig config) {
        UnknownOptions.warnings(config.toMap().keySet()).forEach(LOG::warn);
        WeirConfig checked = new WeirConfig(config);
        checked.checkFluss();
        StoreDirectory.check(checked);
        return checked;
    }

    /** No message names a password. */
    private void checkFluss() {
        boolean hasPassword = flussPassword != null && !flussPassword.isEmpty();
        if ((flussUser != null) != hasPassword) {
            throw new IllegalConfigurationException(
                    String.format(
                            "%s is %s, but %s is %s. Allowed: both for SASL/PLAIN, or none.",
                            WeirOptions.FLUSS_USER.key(),
                            flussUser == null ? "not set" : "'" + flussUser + "'",
                            WeirOptions.FLUSS_PASSWORD.key(),
                            hasPassword ? "set" : "not set"));
        }
        if (store == WeirOptions.Store.FLUSS && flussServers == null) {
            throw new IllegalConfigurationException(
                    String.format(
                            "%s is not set, and %s is 'fluss'. Allowed: host:port of one or more"
                                    + " servers, separated by commas.",
                            WeirOptions.FLUSS_BOOTSTRAP_SERVERS.key(), WeirOptions.STORE.key()));
        }
    }

    private static Long bytes(ReadableConfig config, ConfigOption<MemorySize> option) {
        MemorySize size =
                read(
                        config,
                        option,
                        value -> value.getBytes() > 0,
                        "a size greater than 0, such as '512 mb'");
        return size == null ? null : size.getBytes();
    }

    private static <T> T read(
            ReadableConfig config,
            ConfigOption<T> option,
            Predicate<T> allowed,
            String allowedInWords) {
        T value;
        try {
            value = config.get(option);
        } catch (IllegalArgumentException e) {
            throw new IllegalConfigurationException(
                    String.format("%s: %s Allowed: %s.", option.key(), sentence(e), allowedInWords),
                    e);
        }
        if (value != null && !allowed.test(value)) {
            throw new IllegalConfigurationException(
                    String.format(
                            "%s: '%s' is not allowed. Allowed: %s.",
                            option.key(), value, allowedInWords));
        }
        return value;
    }

    /** Flink names the value it could not parse in its own message, or in that of the cause. */
    private static String sentence(IllegalArgumentException e) {
        String message = String.valueOf(e.getMessage());
        return message.endsWith(".") ? message : message + ".";
    }

    private static String names(Enum<?>[] values) {
        return Arrays.stream(values)
                .map(value -> "'" + value.name().toLowerCase(Locale.ROOT) + "'")
                .collect(Collectors.joining(" or "));
    }

    public WeirOptions.Store store() {
        return store;
    }

    public WeirOptions.TimerService timerService() {
        return timerService;
    }

    /** Null if not set. */
    String directory() {
        return directory;
    }

    /** {@code execution.checkpointing.dir}, or null. */
    String checkpointDirectory() {
        return checkpointDirectory;
    }

    /** {@code host:port,...}, or null. */
    String flussServers() {
        return flussServers;
    }

    String flussDatabase() {
        return flussDatabase;
    }

    /** Whether the job takes checkpoints by itself. */
    boolean checkpointing() {
        return checkpointing;
    }

    boolean usesManagedMemory() {
        return managedMemory && fixedMemoryPerSlot == null;
    }

    /** Null if not set. */
    Long fixedMemoryPerSlot() {
        return fixedMemoryPerSlot;
    }

    /**
     * What is needed to release a version at {@code root}, whichever store a job is configured to
     * use: keys and values in turn, as the native library takes them.
     */
    public String[] releaseConfig(String root) {
        return storeConfig(root.startsWith(StoreDirectory.FLUSS + ":")).toArray(new String[0]);
    }

    private List<String> storeConfig(boolean fluss) {
        List<String> config = new ArrayList<>();
        add(config, "store.timeout-ms", storeTimeout.toMillis());
        add(config, "runtime.threads", runtimeThreads);
        if (!fluss) {
            add(config, "slatedb.gc.min-age-ms", gcMinAge.toMillis());
        } else if (flussUser != null) {
            add(config, "fluss.user", flussUser);
            add(config, "fluss.password", flussPassword);
        }
        return config;
    }

    private static void add(List<String> config, String key, Object value) {
        config.add(key);
        config.add(value.toString());
    }

    /** Everything that an engine needs to know, for a budget of so many bytes. */
    public List<String> engineConfig(long budgetBytes) {
        boolean fluss = store == WeirOptions.Store.FLUSS;
        List<String> config = storeConfig(fluss);
        if (fluss) {
            add(config, "fluss.buckets", flussBuckets);
            add(config, "fluss.replication", flussReplication);
            long remembered = budgetBytes / REMEMBERED_PART / REMEMBERED_KEY_BYTES;
            add(
                    config,
                    "fluss.remembered-keys",
                    Math.max(MIN_REMEMBERED_KEYS, Math.min(remembered, MAX_REMEMBERED_KEYS)));
        }
        if (workingSet != null) {
            add(config, "engine.working-set-bytes", workingSet);
        }
        add(config, "engine.max-dirty-bytes", Math.max(1, (long) (budgetBytes * maxDirtyRatio)));
        return config;
    }
}
