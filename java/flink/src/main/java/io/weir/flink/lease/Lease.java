package io.weir.flink.lease;

import io.weir.flink.errors.InvalidArgumentException;

import org.apache.flink.core.fs.Path;

import java.net.URI;
import java.net.URISyntaxException;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Set;

/**
 * What keeps a version alive: a path in a checkpoint's handle, which alone tells the JobManager
 * which store to call.
 *
 * <p>{@code weir://<scheme of the root>/<rest of the
 * root>/branches/<job>/<operator>/<subtask>/<attempt>/<version>}, the rest being the path of a
 * directory, the name of a memory store, or servers and database of Fluss.
 */
public final class Lease {

    public static final String SCHEME = "weir";

    /** Schemes of roots whose name or servers, rather than a path, come first. */
    private static final Set<String> NAMED = Set.of("memory", "fluss");

    private static final String BRANCHES = "branches";
    private static final int BRANCH_COMPONENTS = 4;

    private final String root;
    private final String branch;
    private final String version;

    /**
     * @param root URI of the store, such as {@code file:///checkpoints/weir} or {@code
     *     fluss://host:9123/weir}
     * @param branch {@code job/operator/subtask/attempt}
     */
    public Lease(String root, String branch, String version) {
        this.root = root;
        this.branch = branch;
        this.version = version;
    }

    public String root() {
        return root;
    }

    public String branch() {
        return branch;
    }

    public String version() {
        return version;
    }

    public Path toPath() {
        String store = root.substring(0, root.indexOf(':'));
        // A list of servers is no authority that every URI may have.
        String directory =
                NAMED.contains(store)
                        ? root.substring(store.length() + ":/".length())
                        : URI.create(root).getPath();
        try {
            return new Path(
                    new URI(
                            SCHEME,
                            store,
                            directory + "/" + BRANCHES + "/" + branch + "/" + version,
                            null,
                            null));
        } catch (URISyntaxException e) {
            throw new IllegalArgumentException(
                    "The directory " + root + " cannot be part of a path.", e);
        }
    }

    /**
     * @throws InvalidArgumentException if the path names no version of a branch
     */
    public static Lease parse(Path path) throws InvalidArgumentException {
        URI uri = path.toUri();
        String store = uri.getAuthority();
        if (!SCHEME.equals(uri.getScheme()) || store == null || uri.getPath() == null) {
            throw notALease(path);
        }
        List<String> parts = Arrays.asList(uri.getPath().split("/"));
        int branches = parts.size() - 1 - BRANCH_COMPONENTS - 1;
        if (branches < 1
                || !parts.get(branches).equals(BRANCHES)
                || parts.get(parts.size() - 1).isEmpty()) {
            throw notALease(path);
        }
        String directory = String.join("/", parts.subList(0, branches));
        String branch = String.join("/", parts.subList(branches + 1, parts.size() - 1));
        String root;
        try {
            root =
                    NAMED.contains(store)
                            ? store + ":/" + directory
                            : new URI(store, "", directory, null, null).toString();
        } catch (URISyntaxException e) {
            throw notALease(path);
        }
        return new Lease(root, branch, parts.get(parts.size() - 1));
    }

    private static InvalidArgumentException notALease(Path path) {
        return new InvalidArgumentException(
                path
                        + " is no lease: expected"
                        + " weir://<store>/<directory>/branches/<job>/<operator>/<subtask>/<attempt>/"
                        + "<version>.");
    }

    @Override
    public boolean equals(Object other) {
        if (!(other instanceof Lease)) {
            return false;
        }
        Lease that = (Lease) other;
        return root.equals(that.root) && branch.equals(that.branch) && version.equals(that.version);
    }

    @Override
    public int hashCode() {
        return Objects.hash(root, branch, version);
    }

    @Override
    public String toString() {
        return toPath().toString();
    }
}
