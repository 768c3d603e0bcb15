package io.weir.flink.snapshot;

import io.weir.flink.keyed.RegisteredState;
import io.weir.flink.keyed.RegisteredStates;
import io.weir.flink.lease.Lease;
import io.weir.flink.nativelib.Commit;
import io.weir.flink.nativelib.Engine;
import io.weir.flink.nativelib.Versions;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.core.fs.CloseableRegistry;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.state.CheckpointStreamFactory;
import org.apache.flink.runtime.state.IncrementalKeyedStateHandle.HandleAndLocalPath;
import org.apache.flink.runtime.state.IncrementalRemoteKeyedStateHandle;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyedBackendSerializationProxy;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.SnapshotResult;
import org.apache.flink.runtime.state.SnapshotStrategy;
import org.apache.flink.runtime.state.filesystem.FileStateHandle;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueSnapshotRestoreWrapper;
import org.apache.flink.runtime.state.memory.ByteStreamStateHandle;
import org.apache.flink.runtime.state.metainfo.StateMetaInfoSnapshot;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Checkpoints: the synchronous part freezes the epoch, which takes no longer for more state; the asynchronous part waits
 * until the store has made it durable and writes the handle. Every checkpoint stands on its own: whatever rows it shares
 * with others is the store's business, so full and incremental checkpoints are the same.
 */
public final class WeirSnapshotStrategy<K> implements SnapshotStrategy<KeyedStateHandle, PendingEpoch> {

    private static final Logger LOG = LoggerFactory.getLogger(WeirSnapshotStrategy.class);

    private final Engine engine;
    private final String root;
    private final String[] storeConfig;
    private final KeyGroupRange range;
    private final int numberOfKeyGroups;
    private final TypeSerializer<K> keySerializer;
    private final String keyCodec;
    private final RegisteredStates states;
    private final Map<String, HeapPriorityQueueSnapshotRestoreWrapper<?>> queues;
    private final UUID backendId = UUID.randomUUID();
    private final Map<Long, PendingEpoch> pending = new ConcurrentHashMap<>();

    /**
     * @param root URI of the store's directory
     * @param storeConfig keys and values in turn, to release a version with that no checkpoint took
     * @param keyCodec the columns of the current key
     */
    public WeirSnapshotStrategy(
            Engine engine,
            String root,
            String[] storeConfig,
            KeyGroupRange range,
            int numberOfKeyGroups,
            TypeSerializer<K> keySerializer,
            String keyCodec,
            RegisteredStates states,
            Map<String, HeapPriorityQueueSnapshotRestoreWrapper<?>> queues) {
        this.engine = engine;
        this.root = root;
        this.storeConfig = storeConfig;
        this.range = range;
        this.numberOfKeyGroups = numberOfKeyGroups;
        this.keySerializer = keySerializer;
        this.keyCodec = keyCodec;
        this.states = states;
        this.queues = queues;
    }

    public String description() {
        return "Weir checkpoint";
    }

    @Override
    public PendingEpoch syncPrepareResources(long checkpoint) throws Exception {
        List<StateMetaInfoSnapshot> metaInfos = new ArrayList<>();
        List<Payload.StateColumns> columns = new ArrayList<>();
        for (RegisteredState<?, ?> state : states.all()) {
            metaInfos.add(state.metaInfo().snapshot());
            columns.add(new Payload.StateColumns(state.name(), state.namespaceCodecId(), state.userKeyCodecId()));
        }
        for (HeapPriorityQueueSnapshotRestoreWrapper<?> queue : queues.values()) {
            metaInfos.add(queue.getMetaInfo().snapshot());
        }
        long epoch = engine.freeze(checkpoint);
        PendingEpoch frozen =
                new PendingEpoch(
                        checkpoint, engine, epoch, metaInfos, columns, () -> pending.remove(checkpoint));
        pending.put(checkpoint, frozen);
        return frozen;
    }

    @Override
    public SnapshotResultSupplier<KeyedStateHandle> asyncSnapshot(
            PendingEpoch frozen,
            long checkpoint,
            long timestamp,
            CheckpointStreamFactory streamFactory,
            CheckpointOptions options) {
        return registry -> complete(frozen, registry);
    }

    private SnapshotResult<KeyedStateHandle> complete(PendingEpoch frozen, CloseableRegistry registry)
            throws Exception {
        Closeable abort = frozen::abort;
        registry.registerCloseable(abort);
        Commit commit = frozen.await();
        try {
            KeyedStateHandle handle = handle(frozen, commit);
            if (!registry.unregisterCloseable(abort) || !frozen.take()) {
                throw new CancellationException("Checkpoint " + frozen.checkpoint + " was cancelled.");
            }
            return SnapshotResult.of(handle);
        } catch (Exception e) {
            discard(commit, e);
            throw e;
        }
    }

    private KeyedStateHandle handle(PendingEpoch frozen, Commit commit) throws IOException {
        DataOutputSerializer serializers = new DataOutputSerializer(512);
        new KeyedBackendSerializationProxy<>(keySerializer, frozen.metaInfos, false).write(serializers);
        byte[] payload =
                new Payload(
                                root,
                                commit.branch,
                                commit.version,
                                frozen.checkpoint,
                                range,
                                numberOfKeyGroups,
                                commit.nextSequence,
                                keyCodec,
                                frozen.columns,
                                serializers.getCopyOfBuffer())
                        .write();
        Lease lease = new Lease(root, commit.branch, commit.version);
        long written = Math.max(0, commit.writtenBytes);
        return new IncrementalRemoteKeyedStateHandle(
                backendId,
                range,
                frozen.checkpoint,
                Collections.emptyList(),
                List.of(
                        HandleAndLocalPath.of(
                                new FileStateHandle(lease.toPath(), Math.max(0, commit.totalBytes)), "lease")),
                new ByteStreamStateHandle("weir-" + commit.branch + "-" + commit.version, payload),
                payload.length + written);
    }

    /** Gives a version up that will never be part of a checkpoint. */
    private void discard(Commit commit, Exception cause) {
        try {
            Versions.release(root, storeConfig, commit.branch, commit.version);
        } catch (IOException e) {
            cause.addSuppressed(e);
            LOG.warn("Version {} of {} is left behind in {}.", commit.version, commit.branch, root, e);
        }
    }

    /** Gives up the checkpoint's epoch, if it is still on its way; its rows belong to the next one. */
    public void abort(long checkpoint) {
        PendingEpoch frozen = pending.get(checkpoint);
        if (frozen != null) {
            frozen.abort();
        }
    }
}
