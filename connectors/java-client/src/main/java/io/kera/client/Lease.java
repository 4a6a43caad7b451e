package io.kera.client;

/**
 * A member's right to consume a lane, or a range of it, or some of its keys.
 *
 * @param id rises for ever within a group
 * @param start the first ordinal to be delivered
 * @param end exclusive; {@link LaneReader#UNBOUNDED}: the lane from {@code start} on
 * @param generation of the stream's lanes, at whose end reads stop; {@link LaneReader#ALL_GENERATIONS}: they do not
 * @param slices of the lane's keys, with {@link ConsumerOptions.Order#KEY}; otherwise {@link Slices#ALL}
 */
public record Lease(long id, int streamlet, int lane, long start, long end, int generation, Slices slices) {
    /** A lease of all keys. */
    public Lease(long id, int streamlet, int lane, long start, long end, int generation) {
        this(id, streamlet, lane, start, end, generation, Slices.ALL);
    }

    boolean isRange() {
        return end != LaneReader.UNBOUNDED;
    }
}
