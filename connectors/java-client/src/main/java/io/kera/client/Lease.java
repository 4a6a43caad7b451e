package io.kera.client;

/**
 * A member's right to consume a lane, or a range of it.
 *
 * @param id rises for ever within a group
 * @param start the first ordinal to be delivered
 * @param end exclusive; {@link LaneReader#UNBOUNDED}: the lane from {@code start} on
 * @param generation of the stream's lanes, at whose end reads stop; {@link LaneReader#ALL_GENERATIONS}: they do not
 */
public record Lease(long id, int streamlet, int lane, long start, long end, int generation) {
    boolean isRange() {
        return end != LaneReader.UNBOUNDED;
    }
}
