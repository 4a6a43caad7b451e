package io.kera.spark;

import io.kera.client.Admin;
import io.kera.client.ErrorCodes;
import io.kera.client.Generations;
import io.kera.client.KeraException;
import io.kera.client.LaneCutter;
import io.kera.client.LaneReader;
import io.kera.client.OwnerConnections;
import io.kera.client.StreamInfo;
import java.io.IOException;
import java.util.HexFormat;
import java.util.List;
import java.util.SortedMap;
import java.util.TreeMap;

/** Looks at streams from the driver: where lanes begin and end, how they grow, and where their batches end. */
final class StreamLook implements AutoCloseable {
    private final Admin admin;
    private final LaneCutter cutter;
    private final OwnerConnections owners;

    /**
     * What can be read of a lane.
     *
     * @param start where to begin
     * @param head the ordinal behind the last record that can be read: records of open transactions cannot
     */
    record Bounds(long start, long head) {}

    /** The lanes of the stream that has this id, and a name that may be another one's later. */
    record Lanes(String id, SortedMap<LaneId, Bounds> bounds) {}

    StreamLook(BrokerAccess access) throws IOException {
        admin = access.admin();
        cutter = new LaneCutter(admin, access.connect());
        owners = new OwnerConnections(access.connect());
    }

    Admin admin() {
        return admin;
    }

    /** All lanes of a stream; their start is where {@code place} says. */
    Lanes bounds(String stream, Place place) throws IOException {
        return Patience.ask("where the lanes of stream " + stream + " begin and end is not known", () -> {
            String id = hex(admin.stream(stream).id());
            List<Admin.LaneBounds> found = place.kind() == Place.Kind.TIMESTAMP
                    ? admin.boundsFrom(stream, place.timestamp())
                    : admin.bounds(stream);
            StreamInfo info = admin.stream(stream);
            if (!hex(info.id()).equals(id)) {
                throw new IOException("it was made again meanwhile");
            }
            int missing = info.partitions() - found.size();
            if (missing > 0) {
                // Without its bounds a lane would be taken for an empty one.
                throw new IOException("the owners of " + missing + " lanes are away");
            }
            SortedMap<LaneId, Bounds> lanes = new TreeMap<>();
            for (Admin.LaneBounds lane : found) {
                long start = switch (place.kind()) {
                    case EARLIEST -> lane.start();
                    case LATEST -> lane.head();
                    case TIMESTAMP -> LaneReader.firstFrom(info, lane, place.timestamp(), owners);
                };
                lanes.put(new LaneId(stream, lane.streamlet(), lane.lane()), new Bounds(start, lane.head()));
            }
            return new Lanes(id, lanes);
        });
    }

    static String hex(byte[] id) {
        return HexFormat.of().formatHex(id);
    }

    /** What to say where a stream is not the one that it was. */
    static String madeAgain(String stream, String before, String now) {
        return "stream " + stream + " was deleted, and another one has its name: its id was " + before + " and is " + now
                + "; start with a new checkpoint to read the new one";
    }

    /** @throws IllegalStateException if another stream has the name by now */
    void check(String stream, String id) throws IOException {
        String now = hex(Patience.ask("stream " + stream + " cannot be looked up", () -> admin.stream(stream)).id());
        if (!now.equals(id)) {
            throw new IllegalStateException(madeAgain(stream, id, now));
        }
    }

    Generations generations(String stream) throws IOException {
        return Patience.ask("how the lanes of stream " + stream + " grew is not known", () -> admin.generations(stream));
    }

    /**
     * The ordinal at which a batch ends, behind {@code from}; null if there is nothing to read. Where records were deleted
     * it is the first batch that is stored: whoever reads the range says what is lost.
     *
     * @param maxBytes at least one batch, and beyond that no more than so many bytes
     * @param maxOrdinals likewise
     */
    LaneCutter.Range cut(LaneId lane, long from, int maxBytes, long maxOrdinals) throws IOException {
        return Patience.ask("lane " + lane + " cannot be cut at " + from, () -> {
            try {
                return cutAt(lane, from, maxBytes, maxOrdinals);
            } catch (KeraException error) {
                if (error.code() != ErrorCodes.OUT_OF_RANGE) {
                    throw error;
                }
                long start = admin.bounds(lane.stream(), lane.streamlet(), lane.lane()).start();
                return start > from ? cutAt(lane, start, maxBytes, maxOrdinals) : null;
            }
        });
    }

    private LaneCutter.Range cutAt(LaneId lane, long from, int maxBytes, long maxOrdinals) throws IOException {
        return cutter.cut(lane.stream(), lane.streamlet(), lane.lane(), from, maxBytes, maxOrdinals);
    }

    @Override
    public void close() {
        owners.close();
        cutter.close();
        admin.close();
    }
}
