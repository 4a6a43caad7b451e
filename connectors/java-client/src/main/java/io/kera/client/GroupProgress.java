package io.kera.client;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;

/**
 * How far a consumer group is.
 *
 * @param lanes of a native group
 * @param partitions of a group of Kafka's clients
 */
public record GroupProgress(List<Lane> lanes, List<Partition> partitions) {
    /**
     * A lane.
     *
     * @param committed everything below this ordinal is consumed
     * @param finishedAbove records above it that are consumed too, out of order
     * @param head the ordinal behind the last record; empty if the owner has not told
     * @param lag records that are not consumed; empty if the owner has not told where the lane ends
     * @param leases that members hold
     * @param held positions that transactions commit which have not ended
     * @param sliceOffsets of a group with {@link ConsumerOptions.Order#KEY}, by slice: how far above {@code committed} its keys are consumed;
     *     empty: none is
     */
    public record Lane(
            int streamlet,
            int lane,
            long committed,
            long finishedAbove,
            OptionalLong head,
            OptionalLong lag,
            List<HeldLease> leases,
            List<HeldPosition> held,
            List<Long> sliceOffsets) {}

    /**
     * A lease that a member holds.
     *
     * @param lease its number
     * @param start the first ordinal
     * @param end exclusive; {@link LaneReader#UNBOUNDED}: the lane from {@code start} on
     * @param slices with {@link ConsumerOptions.Order#KEY}: bit n stands for slice n of the lane's keys
     * @param committed with {@link ConsumerOptions.Order#KEY}: everything of these slices below is consumed
     */
    public record HeldLease(long lease, String member, long start, long end, long slices, long committed) {}

    /**
     * A position that a transaction commits. Until the transaction ends no other member gets what lies below.
     *
     * @param producer whose transaction it is
     * @param from the first ordinal
     * @param next exclusive
     */
    public record HeldPosition(long lease, long producer, long from, long next) {}

    /**
     * A partition, as Kafka's clients count: p is lane p / M of streamlet p % M, of M streamlets.
     *
     * @param committed the offset; empty: it is assigned to a member, and nothing is committed yet
     * @param head the ordinal behind the last record; empty if the owner has not told
     * @param lag records behind the offset; empty without an offset, and if the owner has not told where the partition ends
     * @param member to whom it is assigned; empty: nobody
     * @param metadata what the client left with its offset
     */
    public record Partition(
            String stream,
            int partition,
            OptionalLong committed,
            OptionalLong head,
            OptionalLong lag,
            String member,
            String metadata) {}

    /** Gathers the two lists from fields of messages, whose numbers differ. */
    static final class Builder {
        private final List<Lane> lanes = new ArrayList<>();
        private final List<Partition> partitions = new ArrayList<>();

        void lane(ByteBuffer in) {
            lanes.add(readLane(in));
        }

        void partition(ByteBuffer in) {
            partitions.add(readPartition(in));
        }

        GroupProgress done() {
            return new GroupProgress(List.copyOf(lanes), List.copyOf(partitions));
        }
    }

    /** What a reset is answered with. */
    static GroupProgress read(ByteBuffer in) {
        Builder progress = new Builder();
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> progress.lane(fields.part());
                case 2 -> progress.partition(fields.part());
                default -> fields.skip();
            }
        }
        return progress.done();
    }

    private static Lane readLane(ByteBuffer in) {
        long[] numbers = new long[10];
        List<HeldLease> leases = new ArrayList<>();
        List<HeldPosition> held = new ArrayList<>();
        List<Long> sliceOffsets = new ArrayList<>();
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1, 2, 3, 4, 5, 6, 9 -> numbers[field] = fields.varint();
                case 7 -> leases.add(readLease(fields.part()));
                case 8 -> held.add(readPosition(fields.part()));
                case 10 -> sliceOffsets.addAll(fields.longs());
                default -> fields.skip();
            }
        }
        boolean isKnown = numbers[9] == 0;
        return new Lane((int) numbers[1], (int) numbers[2], numbers[3], numbers[4], known(isKnown, numbers[5]),
                known(isKnown, numbers[6]), List.copyOf(leases), List.copyOf(held), List.copyOf(sliceOffsets));
    }

    private static OptionalLong known(boolean isKnown, long number) {
        return isKnown ? OptionalLong.of(number) : OptionalLong.empty();
    }

    private static HeldLease readLease(ByteBuffer in) {
        String member = "";
        long[] numbers = new long[7];
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 2 -> member = fields.text();
                case 1, 3, 4, 6 -> numbers[field] = fields.varint();
                case 5 -> numbers[5] = fields.fixed64();
                default -> fields.skip();
            }
        }
        long end = numbers[4] == 0 ? LaneReader.UNBOUNDED : numbers[4];
        return new HeldLease(numbers[1], member, numbers[3], end, numbers[5], numbers[6]);
    }

    private static HeldPosition readPosition(ByteBuffer in) {
        long[] numbers = new long[5];
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            if (field < numbers.length) {
                numbers[field] = fields.varint();
            } else {
                fields.skip();
            }
        }
        return new HeldPosition(numbers[1], numbers[2], numbers[3], numbers[4]);
    }

    private static Partition readPartition(ByteBuffer in) {
        String stream = "";
        String member = "";
        String metadata = "";
        long[] numbers = new long[9];
        boolean isCommitted = false;
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> stream = fields.text();
                case 2, 4, 5, 8 -> numbers[field] = fields.varint();
                case 3 -> {
                    numbers[3] = fields.varint();
                    isCommitted = true;
                }
                case 6 -> member = fields.text();
                case 7 -> metadata = fields.text();
                default -> fields.skip();
            }
        }
        boolean isKnown = numbers[8] == 0;
        return new Partition(stream, (int) numbers[2], known(isCommitted, numbers[3]), known(isKnown, numbers[4]),
                known(isKnown && isCommitted, numbers[5]), member, metadata);
    }
}
