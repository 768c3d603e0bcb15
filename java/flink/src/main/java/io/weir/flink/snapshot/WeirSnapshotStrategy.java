package io.weir.flink.snapshot;

import io.weir.flink.errors.InvalidArgumentException;
import io.weir.flink.keyed.RegisteredQueue;
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
import org.apache.flink.runtime.state.CheckpointStateOutputStream;
import org.apache.flink.runtime.state.CheckpointStreamFactory;
import org.apache.flink.runtime.state.CheckpointedStateScope;
import org.apache.flink.runtime.state.IncrementalKeyedStateHandle.HandleAndLocalPath;
import org.apache.flink.runtime.state.IncrementalRemoteKeyedStateHandle;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyedBackendSerializationProxy;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.SnapshotResult;
import org.apache.flink.runtime.state.SnapshotStrategy;
import org.apache.flink.runtime.state.StreamStateHandle;
import org.apache.flink.runtime.state.filesystem.FileStateHandle;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueSnapshotRestoreWrapper;
import org.apache.flink.runtime.state.metainfo.StateMetaInfoSnapshot;
import org.apache.flink.util.IOUtils;
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
 * Checkpoints: the synchronous part freezes the epoch, which takes no longer for more state; the
 * asynchronous part waits until the store has made it durable and writes the handle. Every
 * checkpoint stands on its own: whatever rows it shares with others is the store's business, so
 * full and incremental checkpoints are the same.
 */
public final class WeirSnapshotStrategy<K>
        implements SnapshotStrategy<KeyedStateHandle, PendingEpoch> {

    private static final Logger LOG = LoggerFactory.getLogger(WeirSnapshotStrategy.class);

    private final Engine engine;
    private final String root;
    private final boolean temporary;
    private final String[] config;
    private final KeyGroupRange range;
    private final int numberOfKeyGroups;
    private final TypeSerializer<K> keySerializer;
    private final String keyCodec;
    private final RegisteredStates states;
    private final Map<String, HeapPriorityQueueSnapshotRestoreWrapper<?>> heapQueues;
    private final UUID backendId = UUID.randomUUID();
    private final Map<Long, PendingEpoch> pending = new ConcurrentHashMap<>();

    /**
     * @param root URI of the store
     * @param temporary whether the store goes with the backend, so that checkpoints are refused
     * @param config keys and values in turn, to release a version with that no checkpoint took
     * @param keyCodec the columns of the current key
     */
    public WeirSnapshotStrategy(
            Engine engine,
            String root,
            boolean temporary,
            String[] config,
            KeyGroupRange range,
            int numberOfKeyGroups,
            TypeSerializer<K> keySerializer,
            String keyCodec,
            RegisteredStates states,
            Map<String, HeapPriorityQueueSnapshotRestoreWrapper<?>> heapQueues) {
        this.engine = engine;
        this.root = root;
        this.temporary = temporary;
        this.config = config;
        this.range = range;
        this.numberOfKeyGroups = numberOfKeyGroups;
        this.keySerializer = keySerializer;
        this.keyCodec = keyCodec;
        this.states = states;
        this.heapQueues = heapQueues;
    }

    public String description() {
        return "Weir checkpoint";
    }

    /** Null where no state was ever registered. */
    @Override
    public PendingEpoch syncPrepareResources(long checkpoint) throws Exception {
        List<StateMetaInfoSnapshot> metaInfos = new ArrayList<>();
        List<Payload.StateColumns> columns = new ArrayList<>();
        for (RegisteredState<?, ?> state : states.all()) {
            metaInfos.add(state.metaInfo().snapshot());
            columns.add(
                    new Payload.StateColumns(
                            state.name(), state.namespaceCodecId(), state.userKeyCodecId()));
        }
        for (RegisteredQueue<?> queue : states.queues()) {
            metaInfos.add(queue.metaInfo().snapshot());
            columns.add(
                    new Payload.StateColumns(
                            queue.name(), queue.codecId(), RegisteredState.NO_USER_KEYS));
        }
        for (HeapPriorityQueueSnapshotRestoreWrapper<?> queue : heapQueues.values()) {
            metaInfos.add(queue.getMetaInfo().snapshot());
        }
        if (metaInfos.isEmpty()) {
            return null;
        }
        long epoch = engine.freeze(checkpoint);
        PendingEpoch frozen =
                new PendingEpoch(
                        checkpoint,
                        engine,
                        epoch,
                        metaInfos,
                        columns,
                        () -> pending.remove(checkpoint));
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
        return registry ->
                frozen == null ? SnapshotResult.empty() : complete(frozen, streamFactory, registry);
    }

    private SnapshotResult<KeyedStateHandle> complete(
            PendingEpoch frozen, CheckpointStreamFactory streamFactory, CloseableRegistry registry)
            throws Exception {
        if (temporary) {
            frozen.abort();
            throw new InvalidArgumentException(
                    String.format(
                            "Checkpoint %d cannot be taken: the job started without checkpoints and"
                                    + " without a directory, so its state lies in %s, which does"
                                    + " not outlive it. Set execution.checkpointing.dir, or take a"
                                    + " canonical savepoint.",
                            frozen.checkpoint, root));
        }
        Closeable abort = frozen::abort;
        registry.registerCloseable(abort);
        Commit commit = frozen.await();
        StreamStateHandle payload = null;
        try {
            payload = write(payload(frozen, commit), streamFactory, registry);
            KeyedStateHandle handle = handle(frozen, commit, payload);
            if (!registry.unregisterCloseable(abort) || !frozen.take()) {
                throw new CancellationException(
                        "Checkpoint " + frozen.checkpoint + " was cancelled.");
            }
            return SnapshotResult.of(handle);
        } catch (Exception e) {
            discard(commit, payload, e);
            throw e;
        }
    }

    private byte[] payload(PendingEpoch frozen, Commit commit) throws IOException {
        DataOutputSerializer serializers = new DataOutputSerializer(512);
        new KeyedBackendSerializationProxy<>(keySerializer, frozen.metaInfos, false)
                .write(serializers);
        return new Payload(
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
    }

    /**
     * Through Flink's stream, which keeps what is small in the checkpoint's own metadata and the
     * rest in a file.
     */
    private static StreamStateHandle write(
            byte[] payload, CheckpointStreamFactory streamFactory, CloseableRegistry registry)
            throws IOException {
        CheckpointStateOutputStream stream =
                streamFactory.createCheckpointStateOutputStream(CheckpointedStateScope.EXCLUSIVE);
        try {
            registry.registerCloseable(stream);
            stream.write(payload);
            if (!registry.unregisterCloseable(stream)) {
                throw new IOException("The stream of the checkpoint's handle was closed.");
            }
            return stream.closeAndGetHandle();
        } catch (IOException | RuntimeException e) {
            IOUtils.closeQuietly(stream);
            throw e;
        }
    }

    private KeyedStateHandle handle(PendingEpoch frozen, Commit commit, StreamStateHandle payload) {
        Lease lease = new Lease(root, commit.branch, commit.version);
        return new IncrementalRemoteKeyedStateHandle(
                backendId,
                range,
                frozen.checkpoint,
                Collections.emptyList(),
                List.of(
                        HandleAndLocalPath.of(
                                new FileStateHandle(lease.toPath(), Math.max(0, commit.totalBytes)),
                                "lease")),
                payload,
                payload.getStateSize() + Math.max(0, commit.writtenBytes));
    }

    /** Gives a version up that will never be part of a checkpoint. */
    private void discard(Commit commit, StreamStateHandle payload, Exception cause) {
        try {
            Versions.release(root, config, commit.branch, commit.version);
        } catch (IOException e) {
            cause.addSuppressed(e);
            LOG.warn(
                    "Version {} of {} is left behind in {}.",
                    commit.version,
                    commit.branch,
                    root,
                    e);
        }
        if (payload != null) {
            try {
                payload.discardState();
            } catch (Exception e) {
                cause.addSuppressed(e);
            }
        }
    }

    /**
     * Gives up the checkpoint's epoch, if it is still on its way; its rows belong to the next one.
     */
    public void abort(long checkpoint) {
        PendingEpoch frozen = pending.get(checkpoint);
        if (frozen != null) {
            frozen.abort();
        }
    }
}
