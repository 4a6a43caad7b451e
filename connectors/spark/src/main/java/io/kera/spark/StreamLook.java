package io.kera.spark;

import io.kera.client.Admin;
import io.kera.client.ErrorCodes;
import io.kera.client.Generations;
import io.kera.client.KeraException;
import io.kera.client.KeraRecord;
import io.kera.client.LaneCutter;
import io.kera.client.LaneReader;
import io.kera.client.OwnerConnections;
import io.kera.client.StreamInfo;
import java.io.IOException;
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

    StreamLook(BrokerAccess access) throws IOException {
        admin = access.admin();
        cutter = new LaneCutter(admin, access.connect());
        owners = new OwnerConnections(access.connect());
    }

    Admin admin() {
        return admin;
    }

    /** All lanes of a stream; their start is where {@code place} says. */
    SortedMap<LaneId, Bounds> bounds(String stream, Place place) throws IOException {
        return Patience.ask("where the lanes of stream " + stream + " begin and end is not known", () -> {
            List<Admin.LaneBounds> found = place.kind() == Place.Kind.TIMESTAMP
                    ? admin.boundsFrom(stream, place.timestamp())
                    : admin.bounds(stream);
            StreamInfo info = admin.stream(stream);
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
                    case TIMESTAMP -> first(info, lane, place.timestamp());
                };
                lanes.put(new LaneId(stream, lane.streamlet(), lane.lane()), new Bounds(start, lane.head()));
            }
            return lanes;
        });
    }

    /** A lane is found to begin at a batch: of its records some may be older than the time. */
    private long first(StreamInfo info, Admin.LaneBounds lane, long timestamp) throws IOException {
        try (LaneReader reader = new LaneReader(info, lane.streamlet(), lane.lane(), lane.start(), lane.head(),
                LaneReader.ALL_GENERATIONS, owners)) {
            while (!reader.finished()) {
                long before = reader.position();
                for (KeraRecord record : reader.read(1, 0)) {
                    if (record.timestamp() >= timestamp) {
                        return record.ordinal();
                    }
                }
                if (!reader.finished() && reader.position() == before) {
                    throw new IOException("lane " + lane.streamlet() + "/" + lane.lane() + " has no records at " + before);
                }
            }
            return lane.head();
        }
    }

    Generations generations(String stream) throws IOException {
        return Patience.ask("how the lanes of stream " + stream + " grew is not known", () -> admin.generations(stream));
    }

    /**
     * The ordinal at which a batch ends, behind {@code from}; null if there is nothing to read, or it was deleted.
     *
     * @param maxBytes at least one batch, and beyond that no more than so many bytes
     * @param maxOrdinals likewise
     */
    LaneCutter.Range cut(LaneId lane, long from, int maxBytes, long maxOrdinals) throws IOException {
        return Patience.ask("lane " + lane + " cannot be cut at " + from, () -> {
            try {
                return cutter.cut(lane.stream(), lane.streamlet(), lane.lane(), from, maxBytes, maxOrdinals);
            } catch (KeraException error) {
                if (error.code() == ErrorCodes.OUT_OF_RANGE) {
                    // Whoever reads the range finds that too, and says what is lost.
                    return null;
                }
                throw error;
            }
        });
    }

    @Override
    public void close() {
        owners.close();
        cutter.close();
        admin.close();
    }
}
