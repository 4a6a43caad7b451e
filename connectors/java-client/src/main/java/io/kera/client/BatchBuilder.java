package io.kera.client;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.zip.CRC32C;

/** A batch that takes records: they are encoded straight into it. */
final class BatchBuilder {
    /** Bytes of a batch's header. */
    static final int HEADER = 61;

    private static final int CHECKED_FROM = 21;
    private static final int PRODUCER_AT = 43;

    private byte[] bytes;
    private int length = HEADER;
    private int records;
    private long firstTime;
    private long lastTime;

    BatchBuilder(int capacity) {
        bytes = new byte[Math.max(capacity, HEADER)];
    }

    /** At most so many bytes a record takes in a batch. */
    static int bound(byte[] key, byte[] value, List<KeraRecord.Header> headers) {
        long bound = 5 + 1 + 10 + 5 + 5 + 5 + 5L + size(key) + size(value);
        for (KeraRecord.Header header : headers) {
            bound += 10 + 3L * header.key().length() + size(header.value());
        }
        if (bound > Integer.MAX_VALUE - HEADER) {
            throw new IllegalArgumentException("a record of " + bound + " bytes is larger than any batch can be");
        }
        return (int) bound;
    }

    private static int size(byte[] bytes) {
        return bytes == null ? 0 : bytes.length;
    }

    /** Bytes so far, before compression. */
    int length() {
        return length;
    }

    int capacity() {
        return bytes.length;
    }

    int records() {
        return records;
    }

    /** Room for so many bytes in all. */
    void reserve(int capacity) {
        if (capacity > bytes.length) {
            bytes = Arrays.copyOf(bytes, capacity);
        }
    }

    /** Adds a record, for which there must be room, and returns its number within the batch. */
    int add(byte[] key, byte[] value, List<KeraRecord.Header> headers, long timestamp) {
        if (records == 0) {
            firstTime = timestamp;
            lastTime = timestamp;
        }
        lastTime = Math.max(lastTime, timestamp);
        int headerBytes = 0;
        byte[][] names = headers.isEmpty() ? null : new byte[headers.size()][];
        for (int n = 0; n < headers.size(); n++) {
            names[n] = headers.get(n).key().getBytes(StandardCharsets.UTF_8);
            headerBytes += varintSize(names[n].length) + names[n].length + fieldSize(headers.get(n).value());
        }
        int body = 1 + varintSize(timestamp - firstTime) + varintSize(records) + fieldSize(key) + fieldSize(value)
                + varintSize(headers.size()) + headerBytes;
        varint(body);
        bytes[length++] = 0;
        varint(timestamp - firstTime);
        varint(records);
        field(key);
        field(value);
        varint(headers.size());
        for (int n = 0; n < headers.size(); n++) {
            field(names[n]);
            field(headers.get(n).value());
        }
        return records++;
    }

    /** The whole batch, not yet stamped by {@link #stamp}. The builder is of no use afterwards. */
    byte[] finish(Compression compression) {
        byte[] batch;
        if (compression == Compression.NONE) {
            batch = length == bytes.length ? bytes : Arrays.copyOf(bytes, length);
        } else {
            byte[] body = compression.compress(bytes, HEADER, length - HEADER);
            batch = new byte[HEADER + body.length];
            System.arraycopy(body, 0, batch, HEADER, body.length);
        }
        ByteBuffer head = ByteBuffer.wrap(batch);
        head.putLong(0, 0).putInt(8, batch.length - 12).putInt(12, 0).put(16, (byte) 2);
        head.putShort(21, (short) compression.number()).putInt(23, records - 1);
        head.putLong(27, firstTime).putLong(35, lastTime).putInt(57, records);
        stamp(batch, -1, (short) -1, -1);
        bytes = null;
        return batch;
    }

    /** Writes whose batch it is, and the checksum. */
    static void markTransactional(byte[] batch) {
        batch[22] |= 0x10;
    }

    static void stamp(byte[] batch, long producer, short epoch, int sequence) {
        ByteBuffer head = ByteBuffer.wrap(batch);
        head.putLong(PRODUCER_AT, producer).putShort(PRODUCER_AT + 8, epoch).putInt(PRODUCER_AT + 10, sequence);
        CRC32C crc = new CRC32C();
        crc.update(batch, CHECKED_FROM, batch.length - CHECKED_FROM);
        head.putInt(17, (int) crc.getValue());
    }

    private static int fieldSize(byte[] field) {
        return field == null ? 1 : varintSize(field.length) + field.length;
    }

    private static int varintSize(long value) {
        long zigzag = value << 1 ^ value >> 63;
        return (70 - Long.numberOfLeadingZeros(zigzag | 1)) / 7;
    }

    private void varint(long value) {
        long zigzag = value << 1 ^ value >> 63;
        while ((zigzag & ~0x7fL) != 0) {
            bytes[length++] = (byte) (zigzag & 0x7f | 0x80);
            zigzag >>>= 7;
        }
        bytes[length++] = (byte) zigzag;
    }

    private void field(byte[] field) {
        if (field == null) {
            varint(-1);
            return;
        }
        varint(field.length);
        System.arraycopy(field, 0, bytes, length, field.length);
        length += field.length;
    }
}
