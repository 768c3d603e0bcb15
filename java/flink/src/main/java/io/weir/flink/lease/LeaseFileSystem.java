package io.weir.flink.lease;

import io.weir.flink.WeirConfig;
import io.weir.flink.nativelib.NativeLibrary;
import io.weir.flink.nativelib.Versions;

import org.apache.flink.core.fs.BlockLocation;
import org.apache.flink.core.fs.FSDataInputStream;
import org.apache.flink.core.fs.FSDataOutputStream;
import org.apache.flink.core.fs.FileStatus;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.core.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.net.URI;

/**
 * Shows leases as paths that can be deleted and nothing else; deleting one releases the version in
 * its store.
 */
final class LeaseFileSystem extends FileSystem {

    private static final Logger LOG = LoggerFactory.getLogger(LeaseFileSystem.class);

    private final URI uri;
    private final String[] temporaryDirectories;
    private final WeirConfig config;

    LeaseFileSystem(URI uri, String[] temporaryDirectories, WeirConfig config) {
        this.uri = uri;
        this.temporaryDirectories = temporaryDirectories;
        this.config = config;
    }

    @Override
    public boolean delete(Path path, boolean recursive) throws IOException {
        Lease lease = Lease.parse(path);
        NativeLibrary.load(temporaryDirectories);
        Versions.release(
                lease.root(), config.releaseConfig(lease.root()), lease.branch(), lease.version());
        LOG.debug("Released {}.", lease);
        return true;
    }

    /**
     * A well-formed lease is taken to exist: only then does Flink report that deleting it failed.
     */
    @Override
    public boolean exists(Path path) throws IOException {
        Lease.parse(path);
        return true;
    }

    @Override
    public FileStatus getFileStatus(Path path) throws IOException {
        Lease.parse(path);
        return new LeaseStatus(path);
    }

    @Override
    public FileStatus[] listStatus(Path path) throws IOException {
        return new FileStatus[] {getFileStatus(path)};
    }

    @Override
    public BlockLocation[] getFileBlockLocations(FileStatus file, long start, long length) {
        return new BlockLocation[0];
    }

    @Override
    public FSDataInputStream open(Path path, int bufferSize) throws IOException {
        throw refusal(path);
    }

    @Override
    public FSDataInputStream open(Path path) throws IOException {
        throw refusal(path);
    }

    @Override
    public FSDataOutputStream create(Path path, WriteMode mode) throws IOException {
        throw refusal(path);
    }

    @Override
    public boolean mkdirs(Path path) throws IOException {
        throw refusal(path);
    }

    @Override
    public boolean rename(Path source, Path target) throws IOException {
        throw refusal(source);
    }

    private static IOException refusal(Path path) {
        return new IOException(
                path
                        + " stands for state kept by Weir: it can be deleted, but not read or"
                        + " written as a file.");
    }

    @Override
    public Path getWorkingDirectory() {
        return new Path(uri);
    }

    @Override
    public Path getHomeDirectory() {
        return new Path(uri);
    }

    @Override
    public URI getUri() {
        return uri;
    }

    @Override
    public boolean isDistributedFS() {
        return true;
    }

    /** A lease seen as an empty file. */
    private static final class LeaseStatus implements FileStatus {
        private final Path path;

        LeaseStatus(Path path) {
            this.path = path;
        }

        @Override
        public long getLen() {
            return 0;
        }

        @Override
        public long getBlockSize() {
            return 0;
        }

        @Override
        public short getReplication() {
            return 1;
        }

        @Override
        public long getModificationTime() {
            return 0;
        }

        @Override
        public long getAccessTime() {
            return 0;
        }

        @Override
        public boolean isDir() {
            return false;
        }

        @Override
        public Path getPath() {
            return path;
        }
    }
}
