package io.weir.flink.nativelib;

import org.apache.flink.util.FileUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Files and folders named after the process that made them, so that those of dead ones are known.
 */
public final class OwnedFiles {

    private static final Logger LOG = LoggerFactory.getLogger(OwnedFiles.class);

    private OwnedFiles() {}

    /** A path that nobody uses: {@code <home>/<prefix><process id>-<UUID><suffix>}. */
    public static Path newPath(Path home, String prefix, String suffix) {
        return home.resolve(
                prefix + ProcessHandle.current().pid() + "-" + UUID.randomUUID() + suffix);
    }

    /** Removes what processes left behind that were killed. */
    public static void removeLeftovers(Path home, String prefix) {
        Pattern owned = Pattern.compile(Pattern.quote(prefix) + "(\\d+)-[0-9a-f-]+(\\..*)?");
        try (DirectoryStream<Path> paths = Files.newDirectoryStream(home, prefix + "*")) {
            for (Path path : paths) {
                Matcher name = owned.matcher(path.getFileName().toString());
                if (name.matches() && ProcessHandle.of(Long.parseLong(name.group(1))).isEmpty()) {
                    FileUtils.deleteFileOrDirectory(path.toFile());
                }
            }
        } catch (IOException e) {
            LOG.debug("Leftovers {}* in {} could not all be removed.", prefix, home, e);
        }
    }
}
