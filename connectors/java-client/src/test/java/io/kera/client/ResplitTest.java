package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class ResplitTest {
    /** Of one partition while there are two, and of the first of three. */
    private static byte[] keyOf(int partition) {
        for (int n = 0; ; n++) {
            byte[] key = ("k" + n).getBytes(StandardCharsets.UTF_8);
            if (Partitions.of(key, 2) == partition && Partitions.of(key, 3) == 0) {
                return key;
            }
        }
    }

    private static SealedBatch batch(byte[] key, long number) {
        BatchBuilder builder = new BatchBuilder(1_000);
        builder.add(key, key, List.of(), 0);
        return new SealedBatch(builder.finish(Compression.NONE), 1, List.of(), Long.MAX_VALUE, 0, number);
    }

    @Test
    void whoWaitsForABatchWaitsForItsRecordsInOtherBatches() throws Exception {
        Outstanding outstanding = new Outstanding();
        ProducerLane[] lanes = new ProducerLane[3];
        for (int n = 0; n < 3; n++) {
            lanes[n] = new ProducerLane(n, 0, n, new LaneQueue(0, false, 1, (short) 0));
        }
        long older = outstanding.begin();
        long newer = outstanding.begin();
        // Two lanes have become three, of which the first gets records of both.
        Resplit resplit = new Resplit(lanes, false, 1 << 16, Compression.NONE, new MemoryBudget(1 << 20), outstanding);
        resplit.add(0, batch(keyOf(0), newer));
        resplit.add(1, batch(keyOf(1), older));
        resplit.finish();
        List<SealedBatch> all = lanes[0].queue.takeToSend(true);
        assertEquals(1, all.size());
        assertEquals(2, all.get(0).records);
        // It is what a flush waits for that began between the two.
        assertEquals(older, all.get(0).number);
        outstanding.end(older, null);
        outstanding.await(outstanding.mark());
    }
}
