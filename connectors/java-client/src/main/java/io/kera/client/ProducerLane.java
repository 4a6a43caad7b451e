package io.kera.client;

import io.kera.client.SealedBatch.Tracked;
import java.util.ArrayList;
import java.util.List;

/** A lane as a producer has it: the batch that takes records, and those that wait. Everything is under the lane's lock. */
final class ProducerLane {
    /** The lane that lets the owner choose, for streams whose lanes are not chosen by key. */
    static final int ANY = -1;

    /**
     * What records are split by.
     *
     * @param generation of the stream's lanes
     * @param partitions lanes of all streamlets
     * @param lanes by partition; by streamlet where owners choose
     */
    record Split(int generation, int partitions, ProducerLane[] lanes) {}

    final int index;
    final int streamlet;
    final int lane;
    final LaneQueue queue;
    Split split;
    /** Where its batches go. */
    ProducerLink link;
    /** Whether the link has it on its list. */
    boolean scheduled;
    /** Whether a new producer id was asked for. */
    boolean renewing;

    private BatchBuilder open;
    private List<Tracked> tracked = new ArrayList<>(0);
    private long opened;
    private long number;
    private int counted;

    ProducerLane(int index, int streamlet, int lane, LaneQueue queue) {
        this.index = index;
        this.streamlet = streamlet;
        this.lane = lane;
        this.queue = queue;
    }

    BatchBuilder open() {
        return open;
    }

    /** The number of the open batch. */
    long number() {
        return number;
    }

    /** Opens a batch of so many bytes of memory. */
    void open(int capacity, long now, long batchNumber) {
        open = new BatchBuilder(capacity);
        counted = capacity;
        opened = now;
        number = batchNumber;
    }

    /** Gives the open batch more memory. */
    void grow(int capacity) {
        open.reserve(capacity);
        counted = capacity;
    }

    void track(Tracked record) {
        tracked.add(record);
    }

    /** Takes the open batch out, complete. What it took of memory beyond its bytes is released. */
    SealedBatch seal(Compression compression, MemoryBudget memory, long deadlineNanos) {
        int records = open.records();
        byte[] bytes = open.finish(compression);
        if (bytes.length < counted) {
            memory.release(counted - bytes.length);
        } else {
            memory.force(bytes.length - counted);
        }
        SealedBatch batch = new SealedBatch(bytes, records, tracked, opened + deadlineNanos, bytes.length, number);
        open = null;
        tracked = new ArrayList<>(0);
        return batch;
    }
}
