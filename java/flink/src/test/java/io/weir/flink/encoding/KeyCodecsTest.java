package io.weir.flink.encoding;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.BooleanSerializer;
import org.apache.flink.api.common.typeutils.base.ByteSerializer;
import org.apache.flink.api.common.typeutils.base.DoubleSerializer;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.ShortSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.BooleanType;
import org.apache.flink.table.types.logical.DoubleType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.SmallIntType;
import org.apache.flink.table.types.logical.TinyIntType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.flink.types.RowKind;
import org.junit.jupiter.api.Test;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;

class KeyCodecsTest {

    private static <T> T roundTrip(KeyCodec<T> codec, T value) throws IOException {
        RowKey key = new RowKey();
        codec.write(value, key);
        byte[] bytes = key.toByteArray();
        RowKeyReader reader = new RowKeyReader();
        reader.reset(bytes, 0, bytes.length);
        codec.skip(reader);
        assertThat(reader.position()).isEqualTo(bytes.length);
        reader.reset(bytes, 0, bytes.length);
        T read = codec.read(reader);
        assertThat(reader.position()).isEqualTo(bytes.length);
        return read;
    }

    private static <T> void check(TypeSerializer<T> serializer, String id, List<T> values)
            throws IOException {
        KeyCodec<T> codec = KeyCodecs.forKey(serializer);
        assertThat(codec.id()).isEqualTo(id);
        for (T value : values) {
            assertThat(roundTrip(codec, value)).isEqualTo(value);
        }
    }

    @Test
    void knownTypesAreTypedColumns() throws IOException {
        check(
                LongSerializer.INSTANCE,
                "int64",
                Arrays.asList(0L, -1L, Long.MIN_VALUE, Long.MAX_VALUE, null));
        check(
                IntSerializer.INSTANCE,
                "int32",
                Arrays.asList(0, -1, Integer.MIN_VALUE, Integer.MAX_VALUE, null));
        check(
                ShortSerializer.INSTANCE,
                "int16",
                Arrays.asList((short) 0, Short.MIN_VALUE, Short.MAX_VALUE, null));
        check(
                ByteSerializer.INSTANCE,
                "int8",
                Arrays.asList((byte) 0, Byte.MIN_VALUE, Byte.MAX_VALUE, null));
        check(BooleanSerializer.INSTANCE, "boolean", Arrays.asList(true, false, null));
        check(
                StringSerializer.INSTANCE,
                "utf8",
                Arrays.asList(
                        "",
                        "a",
                        "éß",
                        "€",
                        "\uD83D\uDE00",
                        "x".repeat(31),
                        "y".repeat(100),
                        "\0",
                        null));
        check(DoubleSerializer.INSTANCE, "binary", List.of(0.0, -0.0, Double.NaN));
    }

    @Test
    void stringsThatAreNoUnicodeStayApart() throws IOException {
        check(
                StringSerializer.INSTANCE,
                "utf8",
                List.of("\uD800", "\uD801", "\uDC00a", "a\uD800", "\uDC00\uD800", "?"));
    }

    @Test
    void flatTuplesAreAColumnAField() throws IOException {
        TypeSerializer<Tuple3<String, Long, Boolean>> flat =
                TypeInformation.of(new TypeHint<Tuple3<String, Long, Boolean>>() {})
                        .createSerializer(new SerializerConfigImpl());
        check(
                flat,
                "tuple(utf8,int64,boolean)",
                List.of(Tuple3.of("k", -7L, true), Tuple3.of("", 0L, false)));

        TypeSerializer<Tuple2<String, Double>> other =
                TypeInformation.of(new TypeHint<Tuple2<String, Double>>() {})
                        .createSerializer(new SerializerConfigImpl());
        check(other, "binary", List.of(Tuple2.of("k", 0.5)));
    }

    @Test
    void theVoidNamespaceHasNoBytes() throws IOException {
        KeyCodec<VoidNamespace> codec = KeyCodecs.forNamespace(VoidNamespaceSerializer.INSTANCE);
        RowKey key = new RowKey();
        codec.write(VoidNamespace.INSTANCE, key);
        assertThat(key.length()).isZero();
        assertThat(roundTrip(codec, VoidNamespace.INSTANCE)).isSameAs(VoidNamespace.INSTANCE);
    }

    @Test
    void rowsOfSqlComeBackWithTheSameBytes() throws IOException {
        RowDataSerializer serializer =
                new RowDataSerializer(
                        new BigIntType(),
                        new IntType(),
                        new VarCharType(VarCharType.MAX_LENGTH),
                        new SmallIntType(),
                        new TinyIntType(),
                        new BooleanType(),
                        new VarCharType(10));
        List<RowData> rows =
                List.of(
                        GenericRowData.of(
                                5L,
                                -6,
                                StringData.fromString("longer than seven bytes"),
                                (short) 7,
                                (byte) -8,
                                true,
                                StringData.fromString("short")),
                        GenericRowData.of(null, null, null, null, null, null, null),
                        GenericRowData.of(
                                0L,
                                0,
                                StringData.fromString(""),
                                (short) 0,
                                (byte) 0,
                                false,
                                null));
        KeyCodec<RowData> codec = KeyCodecs.forKey(serializer);
        assertThat(codec.id()).isEqualTo("row(int64,int32,utf8,int16,int8,boolean,utf8)");
        for (RowData row : rows) {
            RowData binary = serializer.toBinaryRow(row, true);
            RowData read = roundTrip(codec, binary);
            assertThat(read).isEqualTo(binary);
            assertThat(read.hashCode()).isEqualTo(binary.hashCode());
        }
        assertThat(KeyCodecs.forUserKey(serializer).id()).isEqualTo("binary");
        assertThat(KeyCodecs.forKey(new RowDataSerializer(new BigIntType(), new DoubleType())).id())
                .isEqualTo("binary");
    }

    @Test
    void rowsOfOtherKindsAreNoKeys() {
        KeyCodec<RowData> codec = KeyCodecs.forKey(new RowDataSerializer(new BigIntType()));
        RowData row = GenericRowData.ofKind(RowKind.DELETE, 1L);
        assertThatThrownBy(() -> codec.write(row, new RowKey())).hasMessageContaining("DELETE");
    }

    @Test
    void stateIdsAreTheBeginOfTheHashOfTheName() {
        // printf '%s' count | sha256sum
        assertThat(StateId.of("abc")).isEqualTo(0xba7816bf);
    }
}
