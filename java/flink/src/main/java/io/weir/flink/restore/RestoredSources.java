package io.weir.flink.restore;

import io.weir.flink.errors.CorruptHandleException;
import io.weir.flink.errors.InvalidArgumentException;
import io.weir.flink.nativelib.Source;
import io.weir.flink.snapshot.Payload;

import org.apache.flink.runtime.state.IncrementalRemoteKeyedStateHandle;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.StreamStateHandle;
import org.apache.flink.util.IOUtils;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Optional;

/**
 * The payloads of the handles that a backend is restored from; after a rescale there are several.
 */
public final class RestoredSources {

    private final List<Payload> payloads;
    private final List<Source> sources;

    private RestoredSources(List<Payload> payloads, List<Source> sources) {
        this.payloads = payloads;
        this.sources = sources;
    }

    /**
     * Reads the handles' payloads, without touching the store.
     *
     * @param range the key groups of the backend, to which the sources are clipped
     * @throws IOException naming the handle, if it is none of Weir's, or damaged, or of another
     *     number of key groups
     */
    public static RestoredSources read(
            Collection<KeyedStateHandle> handles, KeyGroupRange range, int numberOfKeyGroups)
            throws IOException {
        List<Payload> payloads = new ArrayList<>();
        List<Source> sources = new ArrayList<>();
        for (KeyedStateHandle handle : handles) {
            if (handle == null) {
                continue;
            }
            Payload payload = payload(handle);
            if (payload.numberOfKeyGroups != numberOfKeyGroups) {
                throw new InvalidArgumentException(
                        String.format(
                                "Handle %s was written with a maximum parallelism of %d and cannot"
                                        + " be restored with %d.",
                                name(handle), payload.numberOfKeyGroups, numberOfKeyGroups));
            }
            KeyGroupRange clipped = payload.range.getIntersection(range);
            if (clipped.getNumberOfKeyGroups() > 0) {
                payloads.add(payload);
                sources.add(
                        new Source(
                                payload.branch,
                                payload.version,
                                clipped.getStartKeyGroup(),
                                clipped.getEndKeyGroup()));
            }
        }
        return new RestoredSources(payloads, sources);
    }

    private static Payload payload(KeyedStateHandle handle) throws IOException {
        if (!(handle instanceof IncrementalRemoteKeyedStateHandle)) {
            throw new InvalidArgumentException(
                    "Weir cannot restore a "
                            + handle.getClass().getSimpleName()
                            + ": it reads only checkpoints that it wrote itself.");
        }
        StreamStateHandle meta =
                ((IncrementalRemoteKeyedStateHandle) handle).getMetaDataStateHandle();
        return Payload.read(bytes(meta, handle), name(handle));
    }

    private static byte[] bytes(StreamStateHandle meta, KeyedStateHandle handle)
            throws IOException {
        Optional<byte[]> inMemory = meta.asBytesIfInMemory();
        if (inMemory.isPresent()) {
            return inMemory.get();
        }
        try (InputStream in = meta.openInputStream()) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            IOUtils.copyBytes(in, out);
            return out.toByteArray();
        } catch (IOException e) {
            CorruptHandleException unreadable =
                    new CorruptHandleException(
                            "The payload of handle " + name(handle) + " cannot be read: " + e);
            unreadable.initCause(e);
            throw unreadable;
        }
    }

    private static String name(KeyedStateHandle handle) {
        if (handle instanceof IncrementalRemoteKeyedStateHandle) {
            IncrementalRemoteKeyedStateHandle incremental =
                    (IncrementalRemoteKeyedStateHandle) handle;
            return String.format(
                    "%s (checkpoint %d, key groups %s)",
                    incremental.getStateHandleId(),
                    incremental.getCheckpointId(),
                    incremental.getKeyGroupRange());
        }
        return handle.getStateHandleId().toString();
    }

    public List<Payload> payloads() {
        return payloads;
    }

    public List<Source> sources() {
        return sources;
    }

    public boolean isEmpty() {
        return payloads.isEmpty();
    }

    /** The sequence that new list elements go on from; 0 without sources. */
    public long nextSequence() {
        return payloads.stream().mapToLong(payload -> payload.nextSequence).max().orElse(0);
    }

    /** 0 without sources. */
    public long checkpoint() {
        return payloads.stream().mapToLong(payload -> payload.checkpoint).max().orElse(0);
    }

    /**
     * The one directory that all sources lie in.
     *
     * @throws InvalidArgumentException if they lie in several
     */
    public String root() throws InvalidArgumentException {
        String root = payloads.get(0).root;
        for (Payload payload : payloads) {
            if (!payload.root.equals(root)) {
                throw new InvalidArgumentException(
                        "The checkpoint's rows lie in two directories, "
                                + root
                                + " and "
                                + payload.root
                                + ".");
            }
        }
        return root;
    }
}
