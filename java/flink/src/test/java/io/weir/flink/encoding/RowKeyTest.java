package io.weir.flink.encoding;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import org.junit.jupiter.api.Test;

import java.util.Arrays;
import java.util.HexFormat;
import java.util.Random;

class RowKeyTest {

    private static String hex(RowKey key) {
        return HexFormat.of().formatHex(key.toByteArray());
    }

    private static RowKey variable(byte[] bytes) {
        RowKey key = new RowKey();
        key.writeVariable(bytes, 0, bytes.length);
        return key;
    }

    @Test
    void headerIsKeyGroupThenStateId() {
        RowKey key = new RowKey();
        key.start(0xABCD);
        key.setStateId(0x01020304);
        assertThat(hex(key)).isEqualTo("abcd01020304");
        assertThat(RowKey.keyGroup(key.toByteArray())).isEqualTo(0xABCD);
    }

    @Test
    void fixedWidthColumnsFlipTheSign() {
        RowKey key = new RowKey();
        key.writeLong(1);
        key.writeInt(-1);
        key.writeShort((short) 0);
        key.writeByte(Byte.MIN_VALUE);
        key.writeBoolean(true);
        key.writeFixedNull(2);
        assertThat(hex(key))
                .isEqualTo(
                        "018000000000000001"
                                + "017fffffff"
                                + "018000"
                                + "0100"
                                + "0101"
                                + "000000");
    }

    @Test
    void variableWidthColumnsAreBlocks() {
        assertThat(hex(variable(new byte[0]))).isEqualTo("01");
        assertThat(hex(variable("a".getBytes()))).isEqualTo("02" + "6100000000000000" + "01");
        assertThat(hex(variable("abcdefgh".getBytes())))
                .isEqualTo("02" + "6162636465666768" + "08");
        assertThat(hex(variable("abcdefghi".getBytes())))
                .isEqualTo("02" + "6162636465666768" + "ff" + "6900000000000000" + "01");
        byte[] block = new byte[32];
        Arrays.fill(block, (byte) 7);
        String mini = "0707070707070707";
        assertThat(hex(variable(block))).isEqualTo("02" + (mini + "ff").repeat(3) + mini + "08");
        byte[] more = Arrays.copyOf(block, 33);
        more[32] = 9;
        assertThat(hex(variable(more)))
                .isEqualTo("02" + (mini + "ff").repeat(4) + "09" + "00".repeat(31) + "01");
    }

    @Test
    void variableWidthColumnsComeBackAndSortAsTheirBytes() {
        Random random = new Random(7);
        RowKeyReader reader = new RowKeyReader();
        byte[] previous = {};
        for (int i = 0; i < 5000; i++) {
            byte[] bytes = new byte[random.nextInt(i % 2 == 0 ? 12 : 200)];
            for (int j = 0; j < bytes.length; j++) {
                bytes[j] = (byte) (random.nextInt(4) - 2);
            }
            byte[] encoded = variable(bytes).toByteArray();
            reader.reset(encoded, 0, encoded.length);
            int length = reader.readVariable();
            assertThat(Arrays.copyOf(reader.variable(), length)).isEqualTo(bytes);
            assertThat(reader.position()).isEqualTo(encoded.length);
            assertThat(
                            Integer.signum(
                                    Arrays.compareUnsigned(
                                            encoded, variable(previous).toByteArray())))
                    .isEqualTo(Integer.signum(Arrays.compareUnsigned(bytes, previous)));
            previous = bytes;
        }
    }

    @Test
    void aCutKeyIsAnException() {
        byte[] encoded = variable("abcdefghijkl".getBytes()).toByteArray();
        RowKeyReader reader = new RowKeyReader();
        for (int end = 0; end < encoded.length; end++) {
            int cut = end;
            reader.reset(encoded, 0, cut);
            assertThatThrownBy(reader::readVariable).isInstanceOf(IllegalStateException.class);
            reader.reset(encoded, 0, 0);
            assertThatThrownBy(reader::readLong).isInstanceOf(IllegalStateException.class);
        }
    }
}
