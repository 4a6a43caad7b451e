package io.kera.client;

import io.kera.client.SealedBatch.Tracked;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Splits waiting records anew after a stream's lanes have grown. Records of a key keep their order. */
final class Resplit {
    private final ProducerLane[] lanes;
    private final boolean placed;
    private final int batchBytes;
    private final Compression compression;
    private final MemoryBudget memory;
    private final Outstanding outstanding;
    private final Map<Integer, Part> parts = new HashMap<>();

    /** A batch that is being filled for its new lane. */
    private static final class Part {
        private final BatchBuilder builder = new BatchBuilder(1 << 10);
        private final List<Tracked> tracked = new ArrayList<>();
        private long number;
        private long deadline;

        Part(long number, long deadline) {
            this.number = number;
            this.deadline = deadline;
        }
    }

    /**
     * Into these lanes, none of which is in use by others.
     *
     * @param placed records stay where they are
     */
    Resplit(ProducerLane[] lanes, boolean placed, int batchBytes, Compression compression, MemoryBudget memory, Outstanding outstanding) {
        this.lanes = lanes;
        this.placed = placed;
        this.batchBytes = batchBytes;
        this.compression = compression;
        this.memory = memory;
        this.outstanding = outstanding;
    }

    /**
     * Adds the records of a batch that was taken out of lane {@code from}.
     *
     * @throws IOException if its bytes cannot be read, which this client wrote
     */
    void add(int from, SealedBatch batch) throws IOException {
        Map<Integer, Tracked> tracked = new HashMap<>();
        batch.tracked.forEach(record -> tracked.put(record.index(), record));
        Batches.read(ByteBuffer.wrap(batch.bytes), record -> {
            int target = placed || record.key() == null ? from : Partitions.of(record.key(), lanes.length);
            int bound = BatchBuilder.bound(record.key(), record.value(), record.headers());
            Part part = parts.get(target);
            if (part != null && part.builder.length() + bound > batchBytes) {
                close(target);
                part = null;
            }
            if (part == null) {
                part = new Part(batch.number, batch.deadline);
                parts.put(target, part);
                outstanding.retain(part.number);
            }
            if (batch.number < part.number) {
                // Whoever waits for the older one waits for all of its records.
                outstanding.retain(batch.number);
                outstanding.end(part.number, null);
                part.number = batch.number;
            }
            int needed = part.builder.length() + bound;
            if (needed > part.builder.capacity()) {
                part.builder.reserve(Math.max(needed, Math.min(2 * part.builder.capacity(), batchBytes)));
            }
            if (batch.deadline - part.deadline < 0) {
                part.deadline = batch.deadline;
            }
            int index = part.builder.add(record.key(), record.value(), record.headers(), record.timestamp());
            Tracked waiting = tracked.get((int) record.ordinal());
            if (waiting != null) {
                part.tracked.add(new Tracked(index, waiting.place()));
            }
        });
        memory.release(batch.counted);
        outstanding.end(batch.number, null);
    }

    /** Hands the last batches to their lanes. */
    void finish() {
        for (Integer target : List.copyOf(parts.keySet())) {
            close(target);
        }
    }

    private void close(int target) {
        Part part = parts.remove(target);
        int records = part.builder.records();
        byte[] bytes = part.builder.finish(compression);
        memory.force(bytes.length);
        ProducerLane lane = lanes[target];
        SealedBatch batch =
                new SealedBatch(bytes, records, part.tracked, part.deadline, bytes.length, part.number);
        synchronized (lane) {
            lane.queue.add(batch);
        }
    }
}
