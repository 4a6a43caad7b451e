package io.kera.spark;

import io.kera.client.Generations;
import io.kera.client.LanePosition;
import io.kera.client.LaneReader;
import io.kera.client.PinKeeper;
import io.kera.spark.KeraOffset.StreamOffset;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.SortedMap;
import java.util.TreeMap;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Reads streams micro-batch by micro-batch. The driver decides what is in one; it joins no consumer group and holds no lease. */
final class KeraMicroBatchStream implements MicroBatchStream, SupportsTriggerAvailableNow, ReportsSourceMetrics {
    private static final Logger LOG = LoggerFactory.getLogger(KeraMicroBatchStream.class);
    /** The file that has where the query began: Spark logs that only with the first micro-batch. */
    private static final String START = "start.json";
    /** Attempts to look at bounds between two looks that show the same lanes. */
    private static final int LOOKS = 20;

    private final KeraOptions options;
    private final RangeReaderFactory readers;
    private final CheckpointFiles files;
    private final StreamLook look;
    private final Admission admission;
    /** Where lanes ended when they were looked at last. */
    private final Map<String, SortedMap<LaneId, StreamLook.Bounds>> seen = new HashMap<>();
    /** Nothing beyond is read; null: everything that comes. */
    private Map<String, StreamLook.Lanes> last;
    /** Null: nothing is pinned. */
    private final QueryPins pins;
    private boolean isPinned;

    KeraMicroBatchStream(KeraOptions options, RangeReaderFactory readers, CheckpointFiles files) throws IOException {
        this.options = options;
        this.readers = readers;
        this.files = files;
        look = new StreamLook(options.access());
        admission = new Admission(look);
        pins = options.pinning().map(pinning -> new QueryPins(options.access(), pinning, PinKeeper.Needs.ALL_LANES,
                SparkSession.active().sparkContext().appName(), "the last micro-batch")).orElse(null);
    }

    /** Where a run begins all is complete before; later {@link #commit} says what is. */
    private void pinFirst(Offset start) {
        if (pins == null) {
            return;
        }
        pins.check();
        if (!isPinned) {
            pin(start);
        }
    }

    private void pin(Offset from) {
        isPinned = true;
        KeraOffset.of(from).streams().forEach((name, stream) -> {
            Map<LaneId, Long> positions = new TreeMap<>();
            stream.cuts().keySet().forEach(lane -> positions.put(lane, stream.position(lane)));
            pins.move(name, stream.id(), positions);
        });
    }

    @Override
    public Offset initialOffset() {
        try {
            String kept = files.read(START);
            if (kept == null) {
                SortedMap<String, StreamOffset> streams = new TreeMap<>();
                for (String stream : options.streams()) {
                    streams.put(stream, begin(stream));
                }
                // Another run may have been faster: then it begins where that one began.
                files.create(START, new KeraOffset(streams).json());
                kept = files.read(START);
            }
            return KeraOffset.parse(kept);
        } catch (IOException error) {
            throw new UncheckedIOException(error.getMessage(), error);
        }
    }

    /** Positions are taken between two looks that show the same lanes: otherwise they would not be of one generation. */
    private StreamOffset begin(String stream) throws IOException {
        for (int attempt = 0; attempt < LOOKS; attempt++) {
            Generations before = look.generations(stream);
            SortedMap<LaneId, List<Long>> cuts = new TreeMap<>();
            StreamLook.Lanes lanes = look.bounds(stream, options.start());
            lanes.bounds().forEach((lane, bounds) -> cuts.put(lane, List.of(bounds.start())));
            Generations after = look.generations(stream);
            if (after.all().size() == before.all().size() && id(before).equals(lanes.id()) && id(after).equals(lanes.id())) {
                return new StreamOffset(lanes.id(), before.all().size(), cuts);
            }
        }
        throw new IOException("the lanes of stream " + stream + " grow all the time; try again later");
    }

    private static String id(Generations grown) {
        return StreamLook.hex(grown.stream());
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
        List<ReadLimit> limits = new ArrayList<>();
        options.maxRecordsPerTrigger().ifPresent(records -> limits.add(ReadLimit.maxRows(records)));
        options.maxBytesPerTrigger().ifPresent(bytes -> limits.add(ReadLimit.maxBytes(bytes)));
        return switch (limits.size()) {
            case 0 -> ReadLimit.allAvailable();
            case 1 -> limits.get(0);
            default -> ReadLimit.compositeLimit(limits.toArray(new ReadLimit[0]));
        };
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        try {
            Map<String, StreamLook.Lanes> now = new HashMap<>();
            for (String stream : options.streams()) {
                now.put(stream, look.bounds(stream, Place.EARLIEST));
            }
            last = now;
        } catch (IOException error) {
            throw new UncheckedIOException(error.getMessage(), error);
        }
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark asks for the latest offset with a start and a limit");
    }

    @Override
    public Offset latestOffset(Offset from, ReadLimit limit) {
        KeraOffset start = KeraOffset.of(from);
        pinFirst(start);
        try {
            Map<String, Generations> grown = new HashMap<>();
            List<LaneRange> ranges = new ArrayList<>();
            for (String stream : options.streams()) {
                StreamOffset at = start.streams().get(stream);
                if (at == null) {
                    throw new IllegalStateException("the checkpoint is one of streams "
                            + String.join(", ", start.streams().keySet()) + ", not of " + stream + ": start with a new one");
                }
                ranges.addAll(ranges(stream, at, grown));
            }
            if (ranges.isEmpty()) {
                // The very same: Spark compares what it logs.
                return start;
            }
            List<LaneRange> admitted = admission.admit(ranges, limit);
            return next(start, grown, RangeCutter.cut(look, admitted, options.minPartitions()));
        } catch (IOException error) {
            throw new UncheckedIOException(error.getMessage(), error);
        }
    }

    /** What could be read of a stream now. */
    private List<LaneRange> ranges(String stream, StreamOffset at, Map<String, Generations> grown) throws IOException {
        StreamLook.Lanes lanes = last == null ? look.bounds(stream, Place.EARLIEST) : last.get(stream);
        // Before anything else: a stream with fewer records would look like one without new ones.
        checkId(stream, at.id(), lanes.id());
        SortedMap<LaneId, StreamLook.Bounds> bounds = lanes.bounds();
        seen.put(stream, bounds);
        if (bounds.entrySet().stream().noneMatch(lane -> at.position(lane.getKey()) < lane.getValue().head())) {
            return List.of();
        }
        // After the bounds: every growth that has moved a lane's end is seen.
        Generations generations = look.generations(stream);
        checkId(stream, at.id(), id(generations));
        if (options.growth() == Growth.REFUSED && generations.all().size() > at.generations()) {
            throw new IllegalStateException("the lanes of stream " + stream
                    + " grew, and the option growth is refused: set it to ordered or unordered");
        }
        grown.put(stream, generations);
        SortedMap<LaneId, Long> ends = options.growth() == Growth.ORDERED
                ? Growth.ends(stream, generations, at::position)
                : new TreeMap<>();
        List<LaneRange> ranges = new ArrayList<>();
        bounds.forEach((lane, bound) -> {
            long end = Math.min(bound.head(), ends.getOrDefault(lane, Long.MAX_VALUE));
            if (at.position(lane) < end) {
                ranges.add(new LaneRange(lane, at.id(), at.position(lane), end));
            }
        });
        return ranges;
    }

    private static void checkId(String stream, String before, String now) {
        if (!now.equals(before)) {
            throw new IllegalStateException(StreamLook.madeAgain(stream, before, now));
        }
    }

    /** Where the query stands after these ranges. */
    private static KeraOffset next(KeraOffset start, Map<String, Generations> grown, List<LaneRange> ranges) {
        SortedMap<String, StreamOffset> streams = new TreeMap<>();
        start.streams().forEach((name, stream) -> {
            SortedMap<LaneId, List<Long>> cuts = new TreeMap<>();
            stream.cuts().keySet().forEach(lane -> cuts.put(lane, List.of(stream.position(lane))));
            Generations now = grown.get(name);
            streams.put(name, new StreamOffset(stream.id(), now == null ? stream.generations() : now.all().size(), cuts));
        });
        for (LaneRange range : ranges) {
            SortedMap<LaneId, List<Long>> cuts = streams.get(range.lane().stream()).cuts();
            List<Long> of = new ArrayList<>(cuts.getOrDefault(range.lane(), List.of(range.start())));
            of.add(range.end());
            cuts.put(range.lane(), of);
        }
        return new KeraOffset(streams);
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        KeraOffset to = KeraOffset.of(end);
        pinFirst(start);
        try {
            // A micro-batch that is repeated was planned by another run, maybe long ago.
            for (Map.Entry<String, StreamOffset> stream : to.streams().entrySet()) {
                look.check(stream.getKey(), stream.getValue().id());
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error.getMessage(), error);
        }
        return to.ranges(KeraOffset.of(start)).toArray(InputPartition[]::new);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return readers;
    }

    @Override
    public Offset deserializeOffset(String json) {
        return KeraOffset.parse(json);
    }

    /** A micro-batch is complete: the group shows it, and the pin moves behind it. */
    @Override
    public void commit(Offset end) {
        if (pins != null) {
            pin(end);
        }
        options.group().ifPresent(group -> KeraOffset.of(end).streams().forEach((name, stream) -> {
            List<LanePosition> positions = new ArrayList<>();
            stream.cuts().keySet().forEach(
                    lane -> positions.add(new LanePosition(lane.streamlet(), lane.lane(), stream.position(lane))));
            try {
                look.admin().commitPositions(group, name, positions);
            } catch (IOException error) {
                // It is for display only; the checkpoint has the positions.
                LOG.warn("group {} does not show where the query stands in stream {}: {}", group, name, error.getMessage());
            }
        }));
    }

    @Override
    public Map<String, String> metrics(Optional<Offset> consumed) {
        long behind = 0;
        if (consumed.isPresent()) {
            KeraOffset at = KeraOffset.of(consumed.get());
            for (Map.Entry<String, SortedMap<LaneId, StreamLook.Bounds>> stream : seen.entrySet()) {
                StreamOffset of = at.streams().get(stream.getKey());
                for (Map.Entry<LaneId, StreamLook.Bounds> lane : stream.getValue().entrySet()) {
                    behind += LaneReader.behind(of.position(lane.getKey()), lane.getValue().head());
                }
            }
        }
        return Map.of("recordsBehind", String.valueOf(behind));
    }

    @Override
    public void stop() {
        if (pins != null) {
            pins.close();
        }
        look.close();
    }
}
