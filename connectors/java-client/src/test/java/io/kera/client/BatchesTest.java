package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class BatchesTest {
    private static final long TIME = 1_700_000_000_000L;

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static List<KeraRecord> records(byte[] batch) throws IOException {
        List<KeraRecord> records = new ArrayList<>();
        Batches.read(ByteBuffer.wrap(batch), records::add);
        return records;
    }

    @Test
    void batchesOfEveryCodecAreReadAsTheVectorsHaveThem() throws IOException {
        Map<String, byte[]> vectors = Vectors.read();
        for (String name : List.of("batch", "batch-gzip", "batch-snappy", "batch-lz4", "batch-zstd")) {
            List<KeraRecord> records = records(vectors.get(name));
            assertEquals(3, records.size(), name);
            KeraRecord first = records.get(0);
            assertArrayEquals(bytes("21"), first.key(), name);
            assertArrayEquals(bytes("one"), first.value(), name);
            assertEquals("h", first.headers().get(0).key(), name);
            assertEquals(TIME, first.timestamp(), name);
            assertNull(records.get(1).key(), name);
            assertNull(records.get(2).value(), name);
            assertEquals(2, records.get(2).ordinal(), name);
            assertEquals(TIME - 1, records.get(2).timestamp(), name);
        }
        assertEquals(TIME + 999, records(vectors.get("batch-append-time")).get(1).timestamp(), "the broker's time");
    }

    @Test
    void aDamagedBatchIsNotRead() throws IOException {
        byte[] damaged = Vectors.read().get("batch");
        damaged[70] ^= 1;
        IOException error = assertThrows(IOException.class, () -> records(damaged));
        assertTrue(error.getMessage().contains("checksum"), error.getMessage());
    }

    @Test
    void aBatchIsWrittenAsTheVectorsHaveIt() throws IOException {
        BatchBuilder builder = new BatchBuilder(1 << 10);
        builder.add(bytes("21"), bytes("one"), List.of(new KeraRecord.Header("h", bytes("x"))), TIME);
        builder.add(null, bytes("two"), List.of(), TIME + 5);
        builder.add(bytes("k"), null, List.of(new KeraRecord.Header("n", null)), TIME - 1);
        byte[] batch = builder.finish(Compression.NONE);
        assertArrayEquals(Vectors.read().get("batch-plain"), batch);
        BatchBuilder.stamp(batch, 4711, (short) 2, 7);
        assertArrayEquals(Vectors.read().get("batch"), batch);
    }

    @ParameterizedTest
    @EnumSource(Compression.class)
    void whatIsWrittenIsReadAgain(Compression compression) throws IOException {
        Random dice = new Random(7);
        // Smaller than a block, and larger than an LZ4 block of 4 MiB.
        for (int count : new int[] {1, 5_000}) {
            BatchBuilder builder = new BatchBuilder(16 << 20);
            List<KeraRecord> written = new ArrayList<>();
            for (int n = 0; n < count; n++) {
                byte[] value = new byte[dice.nextInt(2_000)];
                if (n % 2 == 0) {
                    dice.nextBytes(value);
                }
                long time = TIME + dice.nextInt();
                List<KeraRecord.Header> headers =
                        n % 7 == 0 ? List.of(new KeraRecord.Header("naïve", bytes("v" + n))) : List.of();
                byte[] key = n % 3 == 0 ? null : bytes("key-" + n);
                int before = builder.length();
                assertEquals(n, builder.add(key, value, headers, time));
                assertTrue(builder.length() - before <= BatchBuilder.bound(key, value, headers));
                written.add(new KeraRecord(n, time, key, value, headers));
            }
            List<KeraRecord> read = records(builder.finish(compression));
            assertEquals(written.size(), read.size());
            for (int n = 0; n < count; n++) {
                assertEquals(written.get(n).ordinal(), read.get(n).ordinal());
                assertEquals(written.get(n).timestamp(), read.get(n).timestamp());
                assertArrayEquals(written.get(n).key(), read.get(n).key());
                assertArrayEquals(written.get(n).value(), read.get(n).value());
                assertEquals(written.get(n).headers().size(), read.get(n).headers().size());
            }
        }
    }

    @Test
    void keysBelongWhereKafkasClientPutsThem() {
        Map<String, Integer> known = Map.of(
                "21", -973_932_308, "foobar", -790_332_482, "a-little-bit-long-string", -985_981_536,
                "a-little-bit-longer-string", -1_486_304_829,
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971, "abc", 479_470_107);
        known.forEach((key, hash) -> assertEquals(hash & 0x7fffffff, Partitions.keyHash(bytes(key)), key));
        assertEquals(2, Partitions.streamlet(7, 5));
        assertEquals(1, Partitions.lane(7, 5));
    }

    @Test
    void framesAreWrittenAndReadAsTheVectorsHaveThem() throws IOException {
        Map<String, byte[]> vectors = Vectors.read();
        AppendReply stored = AppendReply.read(header(vectors.get("append-reply")));
        assertTrue(stored.isStored());
        assertEquals(2, stored.lane());
        assertEquals(1000, stored.baseOrdinal());
        AppendReply refused = AppendReply.read(header(vectors.get("append-refused")));
        assertEquals(ErrorCodes.NOT_OWNER, refused.error());
        assertTrue(refused.isUncertain());
        KeraException stopping = FrameChannel.refusal(header(vectors.get("call-refused")));
        assertEquals(ErrorCodes.SHUTTING_DOWN, stopping.code());
        FrameChannel.Frame reply = frame(vectors.get("generations-reply"));
        Generations generations = Generations.read(reply.body());
        assertEquals(4, generations.streamlets());
        Generations.Generation grown = generations.all().get(0);
        assertEquals(12, grown.partitions());
        assertEquals(Generations.Barrier.STREAMLET, grown.barrier());
        assertEquals(new LanePosition(3, 2, 1003), grown.boundaries().get(0));
        byte[] positions = Admin.positionsRequest("engine", "orders", new byte[0], List.of(new LanePosition(3, 2, 1003)));
        FrameChannel.Frame call = frame(vectors.get("commit-positions"));
        byte[] body = new byte[call.body().remaining()];
        call.body().get(body);
        assertArrayEquals(body, positions);
    }

    private static FrameChannel.Frame frame(byte[] frame) throws IOException {
        byte[] prefix = java.util.Arrays.copyOf(frame, 12);
        return FrameChannel.parse(prefix, java.util.Arrays.copyOfRange(frame, 12, frame.length));
    }

    private static ByteBuffer header(byte[] bytes) throws IOException {
        return frame(bytes).header();
    }
}
