package io.weir.flink.lease;

import io.weir.flink.WeirConfig;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ConfigurationUtils;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.core.fs.FileSystemFactory;

import java.net.URI;

/**
 * Gives Flink the scheme {@code weir}, through which discarding a checkpoint releases its versions.
 * A service of this jar, which therefore has to lie in Flink's {@code lib} directory.
 */
public final class WeirFileSystemFactory implements FileSystemFactory {

    private Configuration cluster = new Configuration();

    @Override
    public void configure(Configuration config) {
        cluster = config;
    }

    @Override
    public String getScheme() {
        return Lease.SCHEME;
    }

    @Override
    public FileSystem create(URI uri) {
        return new LeaseFileSystem(
                URI.create(Lease.SCHEME + "://" + uri.getAuthority() + "/"),
                ConfigurationUtils.parseTempDirectories(cluster),
                WeirConfig.of(cluster));
    }
}
