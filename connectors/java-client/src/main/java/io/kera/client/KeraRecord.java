package io.kera.client;

import java.util.List;

/**
 * A record of a lane. Null keys and values are possible.
 *
 * @param ordinal its place in the lane
 * @param timestamp milliseconds since 1970
 */
public record KeraRecord(long ordinal, long timestamp, byte[] key, byte[] value, List<Header> headers) {
    /** A header; its value may be null. */
    public record Header(String key, byte[] value) {}
}
