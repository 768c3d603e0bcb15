package io.weir.flink;

import io.weir.flink.keyed.WeirKeyedStateBackendBuilder;
import io.weir.flink.nativelib.NativeBudget;
import io.weir.flink.nativelib.NativeLibrary;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.IllegalConfigurationException;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.execution.Environment;
import org.apache.flink.runtime.memory.OpaqueMemoryResource;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.AbstractManagedMemoryStateBackend;
import org.apache.flink.runtime.state.BackendBuildingException;
import org.apache.flink.runtime.state.ConfigurableStateBackend;
import org.apache.flink.runtime.state.DefaultOperatorStateBackendBuilder;
import org.apache.flink.runtime.state.OperatorStateBackend;
import org.apache.flink.util.IOUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * A state backend whose keyed state is a bounded working set in native memory over a store, with
 * checkpoints that write what changed and restores that copy nothing. Operator state, which is not
 * keyed, stays on the heap.
 */
public final class WeirStateBackend extends AbstractManagedMemoryStateBackend
        implements ConfigurableStateBackend {

    private static final long serialVersionUID = 1L;

    private static final Logger LOG = LoggerFactory.getLogger(WeirStateBackend.class);

    private static final String MANAGED_MEMORY = "weir-managed-memory";
    private static final String FIXED_MEMORY = "weir-fixed-memory";

    private final WeirConfig config;

    /** A backend with every option at its default. */
    public WeirStateBackend() {
        this.config = WeirConfig.of(new Configuration());
    }

    private WeirStateBackend(ReadableConfig config) {
        this.config = WeirConfig.of(config);
        if (this.config.flussServers() != null && this.config.store() != WeirOptions.Store.FLUSS) {
            LOG.info(
                    "{} is set, but {} is not 'fluss': state is not kept in Fluss.",
                    WeirOptions.FLUSS_BOOTSTRAP_SERVERS.key(),
                    WeirOptions.STORE.key());
        }
        latencyTrackingConfigBuilder = latencyTrackingConfigBuilder.configure(config);
        sizeTrackingConfigBuilder = sizeTrackingConfigBuilder.configure(config);
    }

    @Override
    public WeirStateBackend configure(ReadableConfig config, ClassLoader classLoader) {
        return new WeirStateBackend(config);
    }

    @Override
    public boolean useManagedMemory() {
        return config.usesManagedMemory();
    }

    /** A restore needs nothing of the checkpoint it came from once the task runs. */
    @Override
    public boolean supportsNoClaimRestoreMode() {
        return true;
    }

    /** A savepoint in the native format is the same as one in the canonical. */
    @Override
    public boolean supportsSavepointFormat(SavepointFormatType format) {
        return true;
    }

    @Override
    public <K> AbstractKeyedStateBackend<K> createKeyedStateBackend(
            KeyedStateBackendParameters<K> parameters) throws IOException {
        Environment environment = parameters.getEnv();
        String[] temporaryDirectories = temporaryDirectories(environment);
        NativeLibrary.load(temporaryDirectories);
        OpaqueMemoryResource<NativeBudget> memory =
                memory(environment, parameters.getManagedMemoryFraction());
        try {
            StoreDirectory directory =
                    StoreDirectory.resolve(config, environment, temporaryDirectories);
            memory = withDirectory(directory, memory);
            return new WeirKeyedStateBackendBuilder<>(
                            parameters,
                            latencyTrackingConfigBuilder
                                    .setMetricGroup(parameters.getMetricGroup())
                                    .build(),
                            sizeTrackingConfigBuilder
                                    .setMetricGroup(parameters.getMetricGroup())
                                    .build(),
                            getCompressionDecorator(environment.getExecutionConfig()),
                            config,
                            directory,
                            BranchNames.next(environment, parameters.getOperatorIdentifier()),
                            memory)
                    .build();
        } catch (IOException | RuntimeException | Error e) {
            IOUtils.closeQuietly(memory);
            throw e;
        }
    }

    /** The memory, with which a temporary directory goes, after the engine is closed. */
    private static OpaqueMemoryResource<NativeBudget> withDirectory(
            StoreDirectory directory, OpaqueMemoryResource<NativeBudget> memory) {
        return new OpaqueMemoryResource<>(
                memory.getResourceHandle(),
                memory.getSize(),
                () -> {
                    directory.remove();
                    memory.close();
                });
    }

    private static String[] temporaryDirectories(Environment environment) {
        List<String> directories = new ArrayList<>();
        if (environment.getTaskManagerInfo().getTmpWorkingDirectory() != null) {
            directories.add(
                    environment.getTaskManagerInfo().getTmpWorkingDirectory().getAbsolutePath());
        }
        directories.addAll(Arrays.asList(environment.getTaskManagerInfo().getTmpDirectories()));
        return directories.toArray(new String[0]);
    }

    /** The budget that all operators of a slot share. */
    private OpaqueMemoryResource<NativeBudget> memory(Environment environment, double fraction)
            throws IOException {
        Long fixed = config.fixedMemoryPerSlot();
        if (fixed == null && !config.usesManagedMemory()) {
            throw new IllegalConfigurationException(
                    String.format(
                            "Weir has no memory to work with: %s is false and %s is not set.",
                            WeirOptions.USE_MANAGED_MEMORY.key(),
                            WeirOptions.FIXED_MEMORY_PER_SLOT.key()));
        }
        if (fixed == null
                && !(fraction > 0
                        && environment.getMemoryManager().computeMemorySize(fraction) > 0)) {
            throw new IllegalConfigurationException(
                    String.format(
                            "Weir has no memory to work with: the slot has no managed memory for"
                                + " state backends. Set %s or %s (and the state backend's weight in"
                                + " %s), or %s.",
                            TaskManagerOptions.MANAGED_MEMORY_SIZE.key(),
                            TaskManagerOptions.MANAGED_MEMORY_FRACTION.key(),
                            TaskManagerOptions.MANAGED_MEMORY_CONSUMER_WEIGHTS.key(),
                            WeirOptions.FIXED_MEMORY_PER_SLOT.key()));
        }
        try {
            return fixed == null
                    ? environment
                            .getMemoryManager()
                            .getSharedMemoryResourceForManagedMemory(
                                    MANAGED_MEMORY, NativeBudget::new, fraction)
                    : environment
                            .getMemoryManager()
                            .getExternalSharedMemoryResource(
                                    FIXED_MEMORY, NativeBudget::new, fixed);
        } catch (IOException | RuntimeException e) {
            throw e;
        } catch (Exception e) {
            throw new IOException("The memory of the slot could not be reserved.", e);
        }
    }

    @Override
    public OperatorStateBackend createOperatorStateBackend(
            OperatorStateBackendParameters parameters) throws BackendBuildingException {
        return new DefaultOperatorStateBackendBuilder(
                        parameters.getEnv().getUserCodeClassLoader().asClassLoader(),
                        parameters.getEnv().getExecutionConfig(),
                        true,
                        parameters.getStateHandles(),
                        parameters.getCancelStreamRegistry())
                .build();
    }

    @Override
    public String toString() {
        return "Weir";
    }
}
