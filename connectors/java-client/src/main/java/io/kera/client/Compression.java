package io.kera.client;

import io.airlift.compress.lz4.Lz4Compressor;
import io.airlift.compress.snappy.SnappyCompressor;
import io.airlift.compress.zstd.ZstdCompressor;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.zip.GZIPOutputStream;

/** How the records of a batch are compressed. */
public enum Compression {
    NONE,
    GZIP,
    SNAPPY,
    LZ4,
    ZSTD;

    private static final int LZ4_MAGIC = 0x184d2204;
    /** Version 1, blocks that need no other block, no checksums: the batch has its own. */
    private static final byte LZ4_FLAGS = 0x60;
    /** Blocks of at most 4 MiB. */
    private static final byte LZ4_SIZES = 0x70;
    /** The second byte of xxHash32 of the two bytes above. */
    private static final byte LZ4_CHECK = 0x73;
    private static final int LZ4_BLOCK = 4 << 20;

    /** The number that a batch's attributes have for it. */
    int number() {
        return ordinal();
    }

    /** The bytes from {@code at} on, compressed. */
    byte[] compress(byte[] bytes, int at, int length) {
        return switch (this) {
            case NONE -> Arrays.copyOfRange(bytes, at, at + length);
            case GZIP -> gzip(bytes, at, length);
            case SNAPPY -> {
                SnappyCompressor snappy = new SnappyCompressor();
                byte[] out = new byte[snappy.maxCompressedLength(length)];
                yield Arrays.copyOf(out, snappy.compress(bytes, at, length, out, 0, out.length));
            }
            case LZ4 -> lz4(bytes, at, length);
            case ZSTD -> {
                ZstdCompressor zstd = new ZstdCompressor();
                byte[] out = new byte[zstd.maxCompressedLength(length)];
                yield Arrays.copyOf(out, zstd.compress(bytes, at, length, out, 0, out.length));
            }
        };
    }

    private static byte[] gzip(byte[] bytes, int at, int length) {
        ByteArrayOutputStream out = new ByteArrayOutputStream(length / 2 + 64);
        try (GZIPOutputStream gzip = new GZIPOutputStream(out, 8 << 10)) {
            gzip.write(bytes, at, length);
        } catch (IOException error) {
            // Memory does not fail.
            throw new UncheckedIOException(error);
        }
        return out.toByteArray();
    }

    private static byte[] lz4(byte[] bytes, int at, int length) {
        Lz4Compressor lz4 = new Lz4Compressor();
        int blocks = length / LZ4_BLOCK + 1;
        ByteBuffer out = ByteBuffer.allocate(11 + blocks * 4 + lz4.maxCompressedLength(length) + blocks * 64);
        out.order(ByteOrder.LITTLE_ENDIAN).putInt(LZ4_MAGIC).put(LZ4_FLAGS).put(LZ4_SIZES).put(LZ4_CHECK);
        byte[] block = new byte[lz4.maxCompressedLength(Math.min(length, LZ4_BLOCK))];
        for (int from = at; from < at + length; from += LZ4_BLOCK) {
            int part = Math.min(LZ4_BLOCK, at + length - from);
            int size = lz4.compress(bytes, from, part, block, 0, block.length);
            if (size < part) {
                out.putInt(size).put(block, 0, size);
            } else {
                out.putInt(part | 0x80000000).put(bytes, from, part);
            }
        }
        out.putInt(0);
        return Arrays.copyOf(out.array(), out.position());
    }
}
