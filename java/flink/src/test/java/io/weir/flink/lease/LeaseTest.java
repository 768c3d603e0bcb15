package io.weir.flink.lease;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.weir.flink.errors.InvalidArgumentException;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.core.fs.Path;
import org.junit.jupiter.api.Test;

import java.io.IOException;
import java.net.URI;

class LeaseTest {

    private static final String BRANCH = "0af3/Map_1-b/3-of-8/exec_0_1-12ab34cd";

    @Test
    void aPathNamesRootBranchAndVersion() throws IOException {
        for (String root :
                new String[] {
                    "file:///checkpoints/weir",
                    "file:///a%20b/branches/weir",
                    "memory://test",
                    "fluss://one:9123/weir",
                    "fluss://one.example:9123,[::1]:9123/weir-2"
                }) {
            Lease lease = new Lease(root, BRANCH, "00000042");
            assertThat(lease.toPath().toUri().getScheme()).isEqualTo("weir");
            assertThat(Lease.parse(lease.toPath())).isEqualTo(lease);
            assertThat(Lease.parse(new Path(lease.toPath().toString()))).isEqualTo(lease);
        }
        assertThat(new Lease("file:///c/weir", BRANCH, "7").toPath().toString())
                .isEqualTo("weir://file/c/weir/branches/" + BRANCH + "/7");
        assertThat(new Lease("fluss://one:9123,two:9123/weir", BRANCH, "7").toPath().toString())
                .isEqualTo("weir://fluss/one:9123,two:9123/weir/branches/" + BRANCH + "/7");
    }

    @Test
    void otherPathsAreRefusedByName() {
        for (String path :
                new String[] {
                    "file:///c/weir/branches/a/b/c/d/7",
                    "weir://file/c/weir/branches/a/b/c/7",
                    "weir://file/branches/a/b/c/d/7/8/9",
                    "weir://file/7"
                }) {
            assertThatThrownBy(() -> Lease.parse(new Path(path)))
                    .isInstanceOf(InvalidArgumentException.class)
                    .hasMessageContaining(new Path(path) + " is no lease");
        }
    }

    @Test
    void theFileSystemIsFoundByItsSchemeAndOnlyDeletes() throws IOException {
        FileSystem.initialize(new Configuration(), null);
        FileSystem files = FileSystem.get(URI.create("weir://file/c/weir"));
        Path lease = new Lease("file:///c/weir", BRANCH, "7").toPath();
        assertThat(files.isDistributedFS()).isTrue();
        assertThat(files.exists(lease)).isTrue();
        assertThat(files.getFileStatus(lease).isDir()).isFalse();
        assertThatThrownBy(() -> files.open(lease)).hasMessageContaining(lease.toString());
        assertThatThrownBy(() -> files.create(lease, FileSystem.WriteMode.OVERWRITE))
                .hasMessageContaining(lease.toString());
        assertThatThrownBy(() -> files.delete(new Path("weir://file/c/weir/x"), false))
                .isInstanceOf(InvalidArgumentException.class);
    }
}
