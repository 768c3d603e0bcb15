package io.weir.flink.encoding;

import static org.assertj.core.api.Assertions.assertThat;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.ByteSerializer;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.ShortSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.streaming.api.operators.TimerHeapInternalTimer;
import org.apache.flink.streaming.api.operators.TimerSerializer;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.HexFormat;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * The same bytes as crate {@code arrow-row}, which made {@code tests/golden/row_encodings.txt}:
 * {@code name, type, value, hex}, separated by tabs; {@code \xHH} stands for a byte, {@code NULL}
 * for a null.
 */
class GoldenEncodingTest {

    private static final Pattern ESCAPE = Pattern.compile("\\\\x([0-9a-f]{2})");

    @TestFactory
    Stream<DynamicTest> everyLine() throws IOException {
        return Files.readAllLines(goldenFile()).stream()
                .filter(line -> !line.isEmpty() && !line.startsWith("#"))
                .map(line -> line.split("\t", -1))
                .map(
                        fields ->
                                DynamicTest.dynamicTest(
                                        fields[0], () -> check(fields[1], fields[2], fields[3])));
    }

    private static Path goldenFile() {
        Path directory = Paths.get("").toAbsolutePath();
        while (directory != null) {
            Path file = directory.resolve("tests/golden/row_encodings.txt");
            if (Files.exists(file)) {
                return file;
            }
            directory = directory.getParent();
        }
        throw new IllegalStateException(
                "tests/golden/row_encodings.txt is in no parent directory.");
    }

    private static void check(String type, String value, String hex) throws IOException {
        RowKey key = new RowKey();
        if (type.equals("state")) {
            assertThat(HexFormat.of().toHexDigits(StateId.of(unescape(value)))).isEqualTo(hex);
            return;
        }
        if (type.equals("row")) {
            writeRow(value.split("\\|", -1), key);
        } else if (type.equals("timer")) {
            writeTimer(value.split("\\|", -1), key);
        } else {
            writeColumns(type.split("\\+"), value.split("\\|", -1), key);
        }
        assertThat(HexFormat.of().formatHex(key.toByteArray())).isEqualTo(hex);
    }

    /** Key group, state name, then columns as {@code type:value+type:value}. */
    private static void writeRow(String[] parts, RowKey key) throws IOException {
        key.start(Integer.parseInt(parts[0]));
        key.setStateId(StateId.of(unescape(parts[1])));
        for (int i = 2; i < parts.length; i++) {
            if (!parts[i].isEmpty()) {
                for (String column : parts[i].split("\\+")) {
                    String[] typeAndValue = column.split(":", 2);
                    writeColumn(typeAndValue[0], typeAndValue[1], key);
                }
            }
        }
    }

    /** Key group, name of the queue, then timestamp, key and namespace as {@code type:value}. */
    private static void writeTimer(String[] parts, RowKey key) throws IOException {
        key.start(Integer.parseInt(parts[0]));
        key.setStateId(StateId.of(unescape(parts[1])));
        long timestamp = Long.parseLong(parts[2].split(":", 2)[1]);
        writeTimer(timestamp, typed(parts[3]), typed(parts[4]), key);
    }

    private static <K, N> void writeTimer(
            long timestamp, Typed<K> timerKey, Typed<N> namespace, RowKey key) throws IOException {
        TimerSerializer<K, N> serializer =
                new TimerSerializer<>(timerKey.serializer, namespace.serializer);
        TimerHeapInternalTimer<K, N> timer =
                new TimerHeapInternalTimer<>(timestamp, timerKey.value, namespace.value);
        KeyCodec<TimerHeapInternalTimer<K, N>> codec = KeyCodecs.forElement(serializer);
        int start = key.length();
        codec.write(timer, key);
        RowKeyReader reader = new RowKeyReader();
        reader.reset(key.bytes(), start, key.length());
        assertThat(codec.read(reader)).isEqualTo(timer);
        assertThat(reader.position()).isEqualTo(key.length());
    }

    private static final class Typed<T> {
        final TypeSerializer<T> serializer;
        final T value;

        Typed(TypeSerializer<T> serializer, T value) {
            this.serializer = serializer;
            this.value = value;
        }
    }

    private static Typed<?> typed(String part) {
        String[] typeAndValue = part.split(":", 2);
        switch (typeAndValue[0]) {
            case "":
                return new Typed<>(VoidNamespaceSerializer.INSTANCE, VoidNamespace.INSTANCE);
            case "int":
                return new Typed<>(IntSerializer.INSTANCE, Integer.valueOf(typeAndValue[1]));
            case "bigint":
                return new Typed<>(LongSerializer.INSTANCE, Long.valueOf(typeAndValue[1]));
            case "string":
                return new Typed<>(StringSerializer.INSTANCE, unescape(typeAndValue[1]));
            default:
                ByteBuffer window = ByteBuffer.wrap(HexFormat.of().parseHex(typeAndValue[1]));
                return new Typed<>(
                        new TimeWindow.Serializer(),
                        new TimeWindow(window.getLong(), window.getLong()));
        }
    }

    private static void writeColumns(String[] types, String[] values, RowKey key)
            throws IOException {
        for (int i = 0; i < types.length; i++) {
            writeColumn(types[i], values[i], key);
        }
    }

    private static void writeColumn(String type, String value, RowKey key) throws IOException {
        boolean isNull = value.equals("NULL");
        switch (type) {
            case "tinyint":
                KeyCodecs.forKey(ByteSerializer.INSTANCE)
                        .write(isNull ? null : Byte.valueOf(value), key);
                break;
            case "smallint":
                KeyCodecs.forKey(ShortSerializer.INSTANCE)
                        .write(isNull ? null : Short.valueOf(value), key);
                break;
            case "int":
                KeyCodecs.forKey(IntSerializer.INSTANCE)
                        .write(isNull ? null : Integer.valueOf(value), key);
                break;
            case "bigint":
                KeyCodecs.forKey(LongSerializer.INSTANCE)
                        .write(isNull ? null : Long.valueOf(value), key);
                break;
            case "string":
                KeyCodecs.forKey(StringSerializer.INSTANCE)
                        .write(isNull ? null : unescape(value), key);
                break;
            case "binary":
                if (isNull) {
                    key.writeVariableNull();
                } else {
                    byte[] bytes = HexFormat.of().parseHex(value);
                    key.writeVariable(bytes, 0, bytes.length);
                }
                break;
            case "sequence":
                // The engine writes it: unsigned, so without the flipped sign.
                key.writeLong(Long.parseUnsignedLong(value) ^ Long.MIN_VALUE);
                break;
            default:
                throw new IllegalArgumentException("unknown type " + type);
        }
    }

    private static String unescape(String value) {
        Matcher escapes = ESCAPE.matcher(value);
        return escapes.replaceAll(
                escape ->
                        Matcher.quoteReplacement(
                                String.valueOf((char) Integer.parseInt(escape.group(1), 16))));
    }
}
