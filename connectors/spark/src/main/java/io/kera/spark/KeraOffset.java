package io.kera.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.SortedMap;
import java.util.TreeMap;
import org.apache.spark.sql.connector.read.streaming.Offset;

/**
 * Where a query stands in its streams, and the ranges of the micro-batch that ended there. Spark logs it before it runs the
 * micro-batch: a run that is repeated reads the same ranges.
 */
final class KeraOffset extends Offset {
    private static final int VERSION = 1;
    private static final ObjectMapper JSON = new ObjectMapper();

    /**
     * A stream of it.
     *
     * @param id the stream's id: a name can be used again
     * @param generations of lanes, as many as there were
     * @param cuts of each lane, where the micro-batch began, where tasks part, and where it ended
     */
    record StreamOffset(String id, int generations, SortedMap<LaneId, List<Long>> cuts) {
        /** Where a lane's next record is; one that was not there begins at 0. */
        long position(LaneId lane) {
            List<Long> of = cuts.get(lane);
            return of == null ? 0 : of.get(of.size() - 1);
        }
    }

    private final SortedMap<String, StreamOffset> streams;
    private final String json;

    KeraOffset(SortedMap<String, StreamOffset> streams) {
        this.streams = streams;
        ObjectNode root = JSON.createObjectNode().put("version", VERSION);
        ObjectNode all = root.putObject("streams");
        streams.forEach((name, stream) -> {
            ObjectNode one = all.putObject(name).put("id", stream.id()).put("generations", stream.generations());
            ObjectNode lanes = one.putObject("lanes");
            stream.cuts().forEach((lane, cuts) -> {
                ArrayNode numbers = lanes.putArray(lane.streamlet() + "/" + lane.lane());
                cuts.forEach(numbers::add);
            });
        });
        json = root.toString();
    }

    /** As Spark gives it back: maybe only its text. */
    static KeraOffset of(Offset offset) {
        return offset instanceof KeraOffset own ? own : parse(offset.json());
    }

    /** @throws IllegalArgumentException if it is none, or of a later version */
    static KeraOffset parse(String json) {
        try {
            JsonNode root = JSON.readTree(json);
            if (root.path("version").asInt() != VERSION) {
                throw new IllegalArgumentException("the checkpoint has an offset of version " + root.path("version")
                        + ", and this connector reads version " + VERSION + ": use a newer one. It is " + json);
            }
            SortedMap<String, StreamOffset> streams = new TreeMap<>();
            root.path("streams").properties().forEach(stream -> {
                SortedMap<LaneId, List<Long>> cuts = new TreeMap<>();
                stream.getValue().path("lanes").properties().forEach(lane -> {
                    String[] numbers = lane.getKey().split("/", 2);
                    List<Long> of = new ArrayList<>();
                    lane.getValue().forEach(cut -> of.add(cut.longValue()));
                    int streamlet = Integer.parseInt(numbers[0]);
                    cuts.put(new LaneId(stream.getKey(), streamlet, Integer.parseInt(numbers[1])), of);
                });
                String id = stream.getValue().path("id").asText();
                streams.put(stream.getKey(), new StreamOffset(id, stream.getValue().path("generations").asInt(), cuts));
            });
            return new KeraOffset(streams);
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException("the checkpoint has an offset that cannot be read: " + json, error);
        }
    }

    SortedMap<String, StreamOffset> streams() {
        return streams;
    }

    /** The ranges of the micro-batch that begins at {@code start} and ends here. */
    List<LaneRange> ranges(KeraOffset start) {
        List<LaneRange> ranges = new ArrayList<>();
        streams.forEach((name, stream) -> stream.cuts().forEach((lane, cuts) -> {
            StreamOffset before = start.streams.get(name);
            long from = before == null ? cuts.get(0) : before.position(lane);
            if (cuts.get(0) != from) {
                // It begins elsewhere: then as one range.
                add(ranges, lane, stream.id(), from, cuts.get(cuts.size() - 1));
                return;
            }
            for (int n = 1; n < cuts.size(); n++) {
                add(ranges, lane, stream.id(), cuts.get(n - 1), cuts.get(n));
            }
        }));
        return ranges;
    }

    private static void add(List<LaneRange> ranges, LaneId lane, String id, long start, long end) {
        if (start < end) {
            ranges.add(new LaneRange(lane, id, start, end));
        }
    }

    @Override
    public String json() {
        return json;
    }
}
