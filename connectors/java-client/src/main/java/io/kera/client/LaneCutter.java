package io.kera.client;

import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;

/** Cuts ranges off lanes at batch boundaries, for engines that read a lane in parallel. Not thread-safe. */
public final class LaneCutter implements AutoCloseable {
    private final Admin admin;
    private final Map<String, StreamInfo> streams = new HashMap<>();
    private final OwnerConnections owners;

    /** A range of ordinals: those from {@code start} on, below {@code end}. */
    public record Range(long start, long end) {}

    /** Looks streams up by {@code admin}, which stays open. */
    public LaneCutter(Admin admin, ConnectOptions options) {
        this(admin, options, null);
    }

    /** The same, where one broker that does not answer holds up the lanes of others only for so long. */
    public LaneCutter(Admin admin, ConnectOptions options, Duration patience) {
        this.admin = admin;
        owners = new OwnerConnections(options, patience);
    }

    /**
     * The next range of a lane; null if there is nothing yet.
     *
     * @param from the end of the range before. The range may begin later, where ordinals are missing.
     * @param maxBytes at least one batch, and beyond that no more than so many bytes
     * @throws IOException if the owner cannot be asked now; it may be another one by the next call
     */
    public Range cut(String stream, int streamlet, int lane, long from, int maxBytes) throws IOException {
        return cut(stream, streamlet, lane, from, maxBytes, Long.MAX_VALUE);
    }

    /**
     * The same with a limit of ordinals.
     *
     * @param maxOrdinals likewise at least one batch, and beyond that no more ordinals than these
     */
    public Range cut(String stream, int streamlet, int lane, long from, int maxBytes, long maxOrdinals) throws IOException {
        StreamInfo info = streams.get(stream);
        if (info == null) {
            info = admin.stream(stream);
            streams.put(stream, info);
        }
        String owner = info.owner(streamlet);
        Connection connection = null;
        try {
            if (owner.isEmpty()) {
                throw new IOException("no broker serves streamlet " + streamlet + " of stream " + stream);
            }
            connection = owners.to(owner);
            Wire.Writer request = new Wire.Writer().bytes(1, info.id()).number(2, streamlet).number(3, lane);
            request.number(4, from).number(5, maxOrdinals).number(6, maxBytes);
            return range(new Wire.Reader(connection.call(Methods.CUT_LANE, request.done())));
        } catch (IOException error) {
            streams.remove(stream);
            if (connection != null && !(error instanceof KeraException)) {
                owners.forget(connection, error);
            }
            throw error;
        }
    }

    private static Range range(Wire.Reader fields) {
        boolean found = false;
        long start = 0;
        long end = 0;
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> found = fields.varint() != 0;
                case 2 -> start = LaneReader.ordinal(fields.part());
                case 3 -> end = fields.varint();
                default -> fields.skip();
            }
        }
        return found ? new Range(start, end) : null;
    }

    @Override
    public void close() {
        owners.close();
    }
}
