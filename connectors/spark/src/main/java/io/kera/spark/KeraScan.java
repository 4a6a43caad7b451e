package io.kera.spark;

import io.kera.client.Pinning;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** Reads streams: what is in them now, or what comes too. */
final class KeraScan implements Scan, Batch {
    private final KeraOptions options;
    private final StructType schema;

    private KeraScan(KeraOptions options, StructType schema) {
        this.options = options;
        this.schema = schema;
    }

    /** Knows which columns are wanted. */
    static final class Builder implements ScanBuilder, SupportsPushDownRequiredColumns {
        private final KeraOptions options;
        private StructType schema = KeraColumn.SCHEMA;

        Builder(KeraOptions options) {
            this.options = options;
        }

        @Override
        public void pruneColumns(StructType required) {
            schema = required;
        }

        @Override
        public Scan build() {
            return new KeraScan(options, schema);
        }
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        return "kera " + String.join(",", options.streams());
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        options.checkStream();
        try {
            return new KeraMicroBatchStream(options, factory(options, schema), new CheckpointFiles(checkpoint));
        } catch (IOException error) {
            throw new UncheckedIOException(error.getMessage(), error);
        }
    }

    @Override
    public InputPartition[] planInputPartitions() {
        try (StreamLook look = new StreamLook(options.access())) {
            List<LaneRange> ranges = new ArrayList<>();
            Map<String, PinnedReads.PinnedLanes> lanes = new HashMap<>();
            for (String stream : options.streams()) {
                ranges.addAll(ranges(look, stream, lanes));
            }
            Optional<Pinning> pinning = options.pinning();
            if (pinning.isPresent()) {
                PinnedReads.pin(this, options.access(), pinning.get(), lanes);
            }
            return RangeCutter.cut(look, ranges, options.minPartitions()).toArray(InputPartition[]::new);
        } catch (IOException error) {
            throw new UncheckedIOException(error.getMessage(), error);
        }
    }

    private List<LaneRange> ranges(StreamLook look, String stream, Map<String, PinnedReads.PinnedLanes> lanes) throws IOException {
        Place start = options.start();
        Place end = options.end();
        StreamLook.Lanes starts = look.bounds(stream, start);
        StreamLook.Lanes ends = end.kind() == Place.Kind.LATEST ? starts : look.bounds(stream, end);
        if (!ends.id().equals(starts.id())) {
            throw new IOException(
                    "stream " + stream + " was deleted and made again while its lanes were looked at; run the query once more");
        }
        List<LaneRange> ranges = new ArrayList<>();
        Map<LaneId, Long> needed = new TreeMap<>();
        for (Map.Entry<LaneId, StreamLook.Bounds> lane : starts.bounds().entrySet()) {
            StreamLook.Bounds bounds = ends.bounds().get(lane.getKey());
            long stop = end.kind() == Place.Kind.LATEST ? bounds.head() : bounds.start();
            boolean isRead = lane.getValue().start() < stop;
            needed.put(lane.getKey(), isRead ? lane.getValue().start() : lane.getValue().head());
            if (isRead) {
                ranges.add(new LaneRange(lane.getKey(), starts.id(), lane.getValue().start(), stop));
            }
        }
        lanes.put(stream, new PinnedReads.PinnedLanes(starts.id(), needed));
        return ranges;
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return factory(options, schema);
    }

    private static RangeReaderFactory factory(KeraOptions options, StructType schema) {
        KeraColumn[] columns = Arrays.stream(schema.fieldNames()).map(KeraColumn::named).toArray(KeraColumn[]::new);
        return new RangeReaderFactory(options.access(), columns, options.failOnDataLoss());
    }
}
