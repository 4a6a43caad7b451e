package io.kera.flink;

import io.kera.client.Admin;
import io.kera.client.Generations;
import io.kera.client.LaneReader;
import io.kera.client.OwnerConnections;
import io.kera.client.StreamInfo;
import io.kera.flink.LanePlan.Bounds;
import io.kera.flink.LanePlan.LaneId;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;

/** Looks for the streams of a source: which there are, where their lanes begin, and how they grow. May wait for brokers. */
final class StreamLook implements AutoCloseable {
    /** Attempts to look at bounds between two looks that show the same lanes. */
    private static final int LOOKS = 20;

    /** A stream that was not known. */
    record Fresh(StreamInfo info, Generations grown, Bounds bounds) {}

    /** What a look found: how the known streams have grown, and others. */
    record Found(Map<String, Generations> grown, List<Fresh> fresh) {}

    private final SourceSettings settings;
    private final Admin admin;
    private final OwnerConnections owners;
    private final Set<String> known = ConcurrentHashMap.newKeySet();
    /** The streams that were there when the job began, and where they began, are known. */
    private volatile boolean isBegun;

    StreamLook(SourceSettings settings) throws IOException {
        this.settings = settings;
        admin = new Admin(settings.bootstrap(), settings.connection().options());
        owners = new OwnerConnections(settings.connection().options());
    }

    Admin admin() {
        return admin;
    }

    /** The names of the streams that are known; any thread may ask. */
    Set<String> known() {
        return Set.copyOf(known);
    }

    /** A stream is known from here on. */
    void knows(String stream) {
        known.add(stream);
    }

    boolean isBegun() {
        return isBegun;
    }

    /** What is found from here on came while the job runs, and is read whole. */
    void begun() {
        isBegun = true;
    }

    Found look() throws IOException {
        Map<String, Generations> grown = new HashMap<>();
        List<Fresh> fresh = new ArrayList<>();
        for (String stream : streams()) {
            if (known.contains(stream)) {
                grown.put(stream, admin.generations(stream));
            } else {
                fresh.add(begin(stream));
            }
        }
        return new Found(grown, fresh);
    }

    /** The ids of the streams that are known. */
    Map<String, byte[]> ids() throws IOException {
        Map<String, byte[]> ids = new HashMap<>();
        for (String stream : known) {
            ids.put(stream, admin.stream(stream).id());
        }
        return ids;
    }

    private List<String> streams() throws IOException {
        if (settings.pattern() == null) {
            return settings.streams();
        }
        Pattern pattern = Pattern.compile(settings.pattern());
        return admin.streams().stream()
                .map(StreamInfo::name)
                .filter(name -> pattern.matcher(name).matches())
                .toList();
    }

    /** Positions are taken between two looks that show the same lanes: otherwise they would not be of one generation. */
    private Fresh begin(String stream) throws IOException {
        for (int attempt = 0; attempt < LOOKS; attempt++) {
            StreamInfo info = admin.stream(stream);
            Generations before = admin.generations(stream);
            Bounds bounds = bounds(info);
            int missing = info.partitions() - bounds.ends().size();
            if (missing > 0) {
                // Without its bounds a lane would be taken for an empty one.
                throw new IOException("where " + missing + " lanes of stream " + stream
                        + " begin and end is not known: their owners are away; try again later");
            }
            if (admin.generations(stream).all().size() == before.all().size()) {
                return new Fresh(info, before, bounds);
            }
        }
        throw new IOException("the lanes of stream " + stream + " grow all the time; try again later");
    }

    private Bounds bounds(StreamInfo stream) throws IOException {
        Start start = isBegun ? Start.earliest() : settings.start();
        List<Admin.LaneBounds> lanes = start.kind() == Start.Kind.TIMESTAMP
                ? admin.boundsFrom(stream.name(), start.timestamp())
                : admin.bounds(stream.name());
        Map<LaneId, Long> starts = new HashMap<>();
        Map<LaneId, Long> ends = new HashMap<>();
        for (Admin.LaneBounds lane : lanes) {
            LaneId id = new LaneId(lane.streamlet(), lane.lane());
            starts.put(id, switch (start.kind()) {
                case EARLIEST -> lane.start();
                case TIMESTAMP -> LaneReader.firstFrom(stream, lane, start.timestamp(), owners);
                case LATEST -> lane.head();
                case POSITIONS -> start.position(lane.streamlet(), lane.lane(), lane.start());
            });
            ends.put(id, lane.head());
        }
        return new Bounds(starts, ends);
    }

    @Override
    public void close() {
        owners.close();
        admin.close();
    }
}
