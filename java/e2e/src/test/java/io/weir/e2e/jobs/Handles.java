package io.weir.e2e.jobs;

import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.function.UnaryOperator;

/** Changes Weir's handles inside a checkpoint's {@code _metadata}. */
public final class Handles {
    private static final byte[] MAGIC = "WEIR".getBytes(StandardCharsets.US_ASCII);

    private Handles() {}

    /**
     * Replaces each handle by what {@code change} makes of it. A handle lies in the file as Flink
     * writes bytes kept inline: its length in four bytes, then itself.
     *
     * @return how many there were
     */
    public static int rewrite(String checkpoint, UnaryOperator<byte[]> change) throws Exception {
        Path metadata = metadata(checkpoint);
        byte[] file = Files.readAllBytes(metadata);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        int copied = 0;
        int found = 0;
        for (int at = 4; at <= file.length - MAGIC.length; at++) {
            int length = ByteBuffer.wrap(file, at - 4, 4).getInt();
            if (!startsWithMagic(file, at) || length < MAGIC.length || length > file.length - at) {
                continue;
            }
            byte[] handle = new byte[length];
            System.arraycopy(file, at, handle, 0, length);
            byte[] changed = change.apply(handle);
            out.write(file, copied, at - 4 - copied);
            out.write(ByteBuffer.allocate(4).putInt(changed.length).array());
            out.write(changed);
            copied = at + length;
            at = copied - 1;
            found++;
        }
        out.write(file, copied, file.length - copied);
        Files.write(metadata, out.toByteArray());
        return found;
    }

    public static Path metadata(String checkpoint) {
        return Path.of(URI.create(checkpoint)).resolve("_metadata");
    }

    private static boolean startsWithMagic(byte[] file, int at) {
        for (int i = 0; i < MAGIC.length; i++) {
            if (file[at + i] != MAGIC[i]) {
                return false;
            }
        }
        return true;
    }
}
