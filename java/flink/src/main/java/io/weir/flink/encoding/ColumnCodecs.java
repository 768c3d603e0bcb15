package io.weir.flink.encoding;

import java.util.Arrays;

/** One typed column each; null is a value of its own. */
final class ColumnCodecs {

    private ColumnCodecs() {}

    static final class LongCodec implements KeyCodec<Long> {
        @Override
        public String id() {
            return "int64";
        }

        @Override
        public void write(Long value, RowKey target) {
            if (value == null) {
                target.writeFixedNull(Long.BYTES);
            } else {
                target.writeLong(value);
            }
        }

        @Override
        public Long read(RowKeyReader source) {
            if (source.isNull()) {
                source.skipFixed(Long.BYTES);
                return null;
            }
            return source.readLong();
        }

        @Override
        public void skip(RowKeyReader source) {
            source.skipFixed(Long.BYTES);
        }
    }

    static final class IntCodec implements KeyCodec<Integer> {
        @Override
        public String id() {
            return "int32";
        }

        @Override
        public void write(Integer value, RowKey target) {
            if (value == null) {
                target.writeFixedNull(Integer.BYTES);
            } else {
                target.writeInt(value);
            }
        }

        @Override
        public Integer read(RowKeyReader source) {
            if (source.isNull()) {
                source.skipFixed(Integer.BYTES);
                return null;
            }
            return source.readInt();
        }

        @Override
        public void skip(RowKeyReader source) {
            source.skipFixed(Integer.BYTES);
        }
    }

    static final class ShortCodec implements KeyCodec<Short> {
        @Override
        public String id() {
            return "int16";
        }

        @Override
        public void write(Short value, RowKey target) {
            if (value == null) {
                target.writeFixedNull(Short.BYTES);
            } else {
                target.writeShort(value);
            }
        }

        @Override
        public Short read(RowKeyReader source) {
            if (source.isNull()) {
                source.skipFixed(Short.BYTES);
                return null;
            }
            return source.readShort();
        }

        @Override
        public void skip(RowKeyReader source) {
            source.skipFixed(Short.BYTES);
        }
    }

    static final class ByteCodec implements KeyCodec<Byte> {
        @Override
        public String id() {
            return "int8";
        }

        @Override
        public void write(Byte value, RowKey target) {
            if (value == null) {
                target.writeFixedNull(Byte.BYTES);
            } else {
                target.writeByte(value);
            }
        }

        @Override
        public Byte read(RowKeyReader source) {
            if (source.isNull()) {
                source.skipFixed(Byte.BYTES);
                return null;
            }
            return source.readByte();
        }

        @Override
        public void skip(RowKeyReader source) {
            source.skipFixed(Byte.BYTES);
        }
    }

    static final class BooleanCodec implements KeyCodec<Boolean> {
        @Override
        public String id() {
            return "boolean";
        }

        @Override
        public void write(Boolean value, RowKey target) {
            if (value == null) {
                target.writeFixedNull(Byte.BYTES);
            } else {
                target.writeBoolean(value);
            }
        }

        @Override
        public Boolean read(RowKeyReader source) {
            if (source.isNull()) {
                source.skipFixed(Byte.BYTES);
                return null;
            }
            return source.readBoolean();
        }

        @Override
        public void skip(RowKeyReader source) {
            source.skipFixed(Byte.BYTES);
        }
    }

    /**
     * UTF-8, except that a surrogate without its partner, which Java's strings may hold and UTF-8
     * may not, keeps its own three bytes: Java's encoder would turn different keys into the same
     * question mark.
     */
    static final class StringCodec implements KeyCodec<String> {

        private byte[] bytes = new byte[64];

        @Override
        public String id() {
            return "utf8";
        }

        @Override
        public void write(String value, RowKey target) {
            if (value == null) {
                target.writeVariableNull();
                return;
            }
            // Encoding may replace the buffer.
            int length = encode(value);
            target.writeVariable(bytes, 0, length);
        }

        private int encode(String value) {
            int chars = value.length();
            if (bytes.length < chars * 3L) {
                bytes = new byte[Math.multiplyExact(chars, 3)];
            }
            byte[] out = bytes;
            int at = 0;
            for (int i = 0; i < chars; i++) {
                char c = value.charAt(i);
                if (c < 0x80) {
                    out[at++] = (byte) c;
                } else if (c < 0x800) {
                    out[at++] = (byte) (0xC0 | c >> 6);
                    out[at++] = (byte) (0x80 | c & 0x3F);
                } else if (Character.isHighSurrogate(c)
                        && i + 1 < chars
                        && Character.isLowSurrogate(value.charAt(i + 1))) {
                    int point = Character.toCodePoint(c, value.charAt(++i));
                    out[at++] = (byte) (0xF0 | point >> 18);
                    out[at++] = (byte) (0x80 | point >> 12 & 0x3F);
                    out[at++] = (byte) (0x80 | point >> 6 & 0x3F);
                    out[at++] = (byte) (0x80 | point & 0x3F);
                } else {
                    out[at++] = (byte) (0xE0 | c >> 12);
                    out[at++] = (byte) (0x80 | c >> 6 & 0x3F);
                    out[at++] = (byte) (0x80 | c & 0x3F);
                }
            }
            return at;
        }

        @Override
        public String read(RowKeyReader source) {
            int length = source.readVariable();
            return length < 0 ? null : decode(source.variable(), length);
        }

        private static String decode(byte[] in, int length) {
            char[] chars = new char[length];
            int count = 0;
            int at = 0;
            while (at < length) {
                int b = in[at++];
                if (b >= 0) {
                    chars[count++] = (char) b;
                } else if ((b & 0xE0) == 0xC0) {
                    chars[count++] = (char) ((b & 0x1F) << 6 | in[at++] & 0x3F);
                } else if ((b & 0xF0) == 0xE0) {
                    chars[count++] =
                            (char) ((b & 0x0F) << 12 | (in[at++] & 0x3F) << 6 | in[at++] & 0x3F);
                } else {
                    int point =
                            (b & 0x07) << 18
                                    | (in[at++] & 0x3F) << 12
                                    | (in[at++] & 0x3F) << 6
                                    | in[at++] & 0x3F;
                    chars[count++] = Character.highSurrogate(point);
                    chars[count++] = Character.lowSurrogate(point);
                }
            }
            return new String(Arrays.copyOf(chars, count));
        }

        @Override
        public void skip(RowKeyReader source) {
            source.readVariable();
        }
    }
}
