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
import java.util.stream.Collectors;

/** The options, read and checked. */
public final class WeirConfig implements Serializable {

    private static final long serialVersionUID = 1L;

    private static final Logger LOG = LoggerFactory.getLogger(WeirConfig.class);

    private static final double MAX_DIRTY_RATIO = 0.9;
    private static final int MAX_THREADS = 64;

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
        StoreDirectory.check(checked);
        return checked;
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
     * What the store alone needs to know: keys and values in turn, as the native library takes
     * them.
     */
    public String[] storeConfig() {
        return new String[] {
            "store.timeout-ms",
            Long.toString(storeTimeout.toMillis()),
            "runtime.threads",
            Integer.toString(runtimeThreads),
            "slatedb.gc.min-age-ms",
            Long.toString(gcMinAge.toMillis())
        };
    }

    /** Everything that an engine needs to know, for a budget of so many bytes. */
    public List<String> engineConfig(long budgetBytes) {
        List<String> config = new ArrayList<>(Arrays.asList(storeConfig()));
        if (workingSet != null) {
            config.add("engine.working-set-bytes");
            config.add(Long.toString(workingSet));
        }
        config.add("engine.max-dirty-bytes");
        config.add(Long.toString(Math.max(1, (long) (budgetBytes * maxDirtyRatio))));
        return config;
    }
}
