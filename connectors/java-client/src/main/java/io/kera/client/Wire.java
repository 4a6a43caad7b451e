package io.kera.client;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** Protobuf by hand: the messages are few and small, and engines bring protobuf versions of their own. */
final class Wire {
    private Wire() {}

    /** Writes a message. Fields of value 0 are left out, as proto3 has them. */
    static final class Writer {
        private final ByteArrayOutputStream out = new ByteArrayOutputStream();

        Writer number(int field, long value) {
            return value == 0 ? this : present(field, value);
        }

        /** Written even if it is 0: a field that may be absent. */
        Writer present(int field, long value) {
            varint((long) field << 3);
            varint(value);
            return this;
        }

        /** A number of 8 bytes, written even if it is 0. */
        Writer fixed64(int field, long value) {
            varint((long) field << 3 | 1);
            out.writeBytes(ByteBuffer.allocate(8).putLong(Long.reverseBytes(value)).array());
            return this;
        }

        Writer bytes(int field, byte[] value) {
            varint((long) field << 3 | 2);
            varint(value.length);
            out.writeBytes(value);
            return this;
        }

        Writer text(int field, String value) {
            return bytes(field, value.getBytes(StandardCharsets.UTF_8));
        }

        /** Fields that were written before. */
        Writer message(byte[] fields) {
            out.writeBytes(fields);
            return this;
        }

        byte[] done() {
            return out.toByteArray();
        }

        private void varint(long value) {
            while ((value & ~0x7fL) != 0) {
                out.write((int) value & 0x7f | 0x80);
                value >>>= 7;
            }
            out.write((int) value);
        }
    }

    /** Reads a message field by field. */
    static final class Reader {
        private final ByteBuffer in;
        private int type;

        Reader(ByteBuffer in) {
            this.in = in;
        }

        /** The next field's number; 0 at the end. What was not taken of the one before must have been skipped. */
        int next() {
            if (!in.hasRemaining()) {
                return 0;
            }
            long tag = varint();
            type = (int) tag & 7;
            return (int) (tag >>> 3);
        }

        /** True if the field is a number. */
        boolean isNumber() {
            return type == 0;
        }

        long varint() {
            long value = 0;
            for (int shift = 0; shift < 64; shift += 7) {
                byte next = in.get();
                value |= (long) (next & 0x7f) << shift;
                if (next >= 0) {
                    return value;
                }
            }
            throw new IllegalArgumentException("a number has more than ten bytes");
        }

        /** A number of 8 bytes. */
        long fixed64() {
            return Long.reverseBytes(in.getLong());
        }

        ByteBuffer part() {
            int length = Math.toIntExact(varint());
            ByteBuffer part = in.slice(in.position(), length);
            in.position(in.position() + length);
            return part;
        }

        /** Those of a repeated field, several at once or one. */
        List<Integer> numbers() {
            return longs().stream().map(Long::intValue).toList();
        }

        /** The same of 64 bits. */
        List<Long> longs() {
            List<Long> numbers = new ArrayList<>();
            if (isNumber()) {
                numbers.add(varint());
            } else {
                for (Reader packed = new Reader(part()); packed.in.hasRemaining(); ) {
                    numbers.add(packed.varint());
                }
            }
            return numbers;
        }

        byte[] bytes() {
            ByteBuffer part = part();
            byte[] bytes = new byte[part.remaining()];
            part.get(bytes);
            return bytes;
        }

        String text() {
            return StandardCharsets.UTF_8.decode(part()).toString();
        }

        void skip() {
            switch (type) {
                case 0 -> varint();
                case 1 -> in.position(in.position() + 8);
                case 2 -> part();
                case 5 -> in.position(in.position() + 4);
                default -> throw new IllegalArgumentException("a field of type " + type);
            }
        }
    }
}
