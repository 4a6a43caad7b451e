package io.kera.client;

/**
 * Where an acknowledged record is.
 *
 * @param ordinal its number in the lane
 * @param appendTime the broker's time, milliseconds since 1970
 */
public record RecordPlace(int streamlet, int lane, long ordinal, long appendTime) {}
