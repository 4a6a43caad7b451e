package io.kera.client;

import io.airlift.compress.lz4.Lz4Decompressor;
import io.airlift.compress.snappy.SnappyDecompressor;
import io.airlift.compress.zstd.ZstdInputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Consumer;
import java.util.zip.CRC32C;
import java.util.zip.GZIPInputStream;

/** Batches as brokers store them: Kafka's record batches of magic 2. */
final class Batches {
    private static final int HEADER = 61;
    private static final int CHECKED_FROM = 21;
    private static final int MOST_DECOMPRESSED = 256 << 20;
    private static final byte[] XERIAL = {(byte) 0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};
    private static final int LZ4_MAGIC = 0x184d2204;

    private Batches() {}

    /** Takes whole batches off {@code in}, and hands over their records. */
    static void read(ByteBuffer in, Consumer<KeraRecord> to) throws IOException {
        while (in.hasRemaining()) {
            decode(take(in), to);
        }
    }

    /** Takes a whole batch off {@code in}, which is not looked into yet. */
    static ByteBuffer take(ByteBuffer in) throws IOException {
        if (in.remaining() < HEADER) {
            throw new IOException("a batch has " + in.remaining() + " bytes, fewer than its header");
        }
        long length = 12L + in.getInt(in.position() + 8);
        if (length < HEADER || length > in.remaining()) {
            throw new IOException("a batch of " + length + " bytes is not whole: there are " + in.remaining());
        }
        ByteBuffer batch = in.slice(in.position(), (int) length);
        in.position(in.position() + (int) length);
        return batch;
    }

    /** The ordinal of a batch's first record. */
    static long first(ByteBuffer batch) {
        return batch.getLong(0);
    }

    /** The ordinal behind a batch. It may have fewer records than ordinals. */
    static long behind(ByteBuffer batch) {
        return batch.getLong(0) + batch.getInt(23) + 1;
    }

    /** Hands over the records of a batch. */
    static void decode(ByteBuffer batch, Consumer<KeraRecord> to) throws IOException {
        long base = batch.getLong(0);
        CRC32C crc = new CRC32C();
        crc.update(batch.slice(CHECKED_FROM, batch.limit() - CHECKED_FROM));
        if (batch.get(16) != 2 || (int) crc.getValue() != batch.getInt(17)) {
            throw new IOException("the batch at ordinal " + base + " is damaged: its checksum does not match");
        }
        int attributes = batch.getShort(21);
        boolean brokersTime = (attributes & 8) != 0;
        long baseTime = batch.getLong(27);
        long maxTime = batch.getLong(35);
        int count = batch.getInt(57);
        ByteBuffer records = decompress(attributes & 7, batch.slice(HEADER, batch.limit() - HEADER));
        for (int n = 0; n < count; n++) {
            int length = number(records);
            int end = records.position() + length;
            records.get();
            long time = baseTime + varint(records);
            long ordinal = base + varint(records);
            byte[] key = bytes(records);
            byte[] value = bytes(records);
            int headers = number(records);
            List<KeraRecord.Header> found = headers == 0 ? List.of() : new ArrayList<>();
            for (int h = 0; h < headers; h++) {
                String name = new String(bytes(records), StandardCharsets.UTF_8);
                found.add(new KeraRecord.Header(name, bytes(records)));
            }
            if (records.position() != end) {
                throw new IOException("record " + ordinal + " does not have the length that it says");
            }
            to.accept(new KeraRecord(ordinal, brokersTime ? maxTime : time, key, value, found));
        }
    }

    private static long varint(ByteBuffer in) {
        long value = 0;
        for (int shift = 0; shift < 64; shift += 7) {
            byte next = in.get();
            value |= (long) (next & 0x7f) << shift;
            if (next >= 0) {
                return value >>> 1 ^ -(value & 1);
            }
        }
        throw new IllegalArgumentException("a number has more than ten bytes");
    }

    private static int number(ByteBuffer in) {
        return Math.toIntExact(varint(in));
    }

    private static byte[] bytes(ByteBuffer in) throws IOException {
        int length = number(in);
        if (length < 0) {
            return null;
        }
        if (length > in.remaining()) {
            throw new IOException("a field of " + length + " bytes is longer than its batch");
        }
        byte[] bytes = new byte[length];
        in.get(bytes);
        return bytes;
    }

    private static ByteBuffer decompress(int codec, ByteBuffer body) throws IOException {
        if (codec == 0) {
            return body;
        }
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return ByteBuffer.wrap(switch (codec) {
            case 1 -> all(new GZIPInputStream(new ByteArrayInputStream(bytes)));
            case 2 -> snappy(bytes);
            case 3 -> lz4(ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN));
            case 4 -> all(new ZstdInputStream(new ByteArrayInputStream(bytes)));
            default -> throw new IOException("codec " + codec + " is not known; use a newer client");
        });
    }

    private static byte[] all(InputStream in) throws IOException {
        byte[] bytes = in.readNBytes(MOST_DECOMPRESSED + 1);
        bound(bytes.length);
        return bytes;
    }

    private static void bound(long bytes) throws IOException {
        if (bytes > MOST_DECOMPRESSED) {
            throw new IOException("a batch has more than 256 MiB when it is decompressed");
        }
    }

    private static byte[] snappy(byte[] bytes) throws IOException {
        if (bytes.length < 16 || !Arrays.equals(bytes, 0, XERIAL.length, XERIAL, 0, XERIAL.length)) {
            return block(bytes, 0, bytes.length);
        }
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteBuffer in = ByteBuffer.wrap(bytes, 16, bytes.length - 16);
        while (in.hasRemaining()) {
            int length = in.getInt();
            out.writeBytes(block(bytes, in.position(), length));
            bound(out.size());
            in.position(in.position() + length);
        }
        return out.toByteArray();
    }

    private static byte[] block(byte[] bytes, int at, int length) throws IOException {
        int size = SnappyDecompressor.getUncompressedLength(bytes, at);
        bound(size);
        byte[] out = new byte[size];
        new SnappyDecompressor().decompress(bytes, at, length, out, 0, size);
        return out;
    }

    /** A frame of LZ4 blocks. The batch's checksum covers them, so theirs are not looked at. */
    private static byte[] lz4(ByteBuffer in) throws IOException {
        int magic = in.getInt();
        int flags = in.get();
        int most = 1 << 8 + 2 * (in.get() >> 4 & 7);
        boolean independent = (flags & 0x20) != 0;
        if (magic != LZ4_MAGIC || !independent) {
            throw new IOException("a batch has no LZ4 frame of independent blocks");
        }
        in.position(in.position() + ((flags & 8) != 0 ? 8 : 0) + 1);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        byte[] block = new byte[most];
        for (int head; (head = in.getInt()) != 0; ) {
            int length = head & 0x7fffffff;
            if (head < 0) {
                out.write(in.array(), in.position(), length);
            } else {
                int size = new Lz4Decompressor().decompress(in.array(), in.position(), length, block, 0, most);
                out.write(block, 0, size);
            }
            bound(out.size());
            in.position(in.position() + length + ((flags & 0x10) != 0 ? 4 : 0));
        }
        return out.toByteArray();
    }
}
