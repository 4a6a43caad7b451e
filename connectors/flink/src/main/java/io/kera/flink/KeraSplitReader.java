package io.kera.flink;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.KeraRecord;
import io.kera.client.LaneReader;
import io.kera.client.OwnerConnections;
import io.kera.client.SilentBrokerException;
import io.kera.client.Slices;
import io.kera.client.StreamInfo;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.connector.base.source.reader.RecordsBySplits;
import org.apache.flink.connector.base.source.reader.RecordsWithSplitIds;
import org.apache.flink.connector.base.source.reader.splitreader.SplitReader;
import org.apache.flink.connector.base.source.reader.splitreader.SplitsAddition;
import org.apache.flink.connector.base.source.reader.splitreader.SplitsChange;
import org.apache.flink.util.FlinkRuntimeException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Reads the lanes of a reader in turn, each from its owner, or from a replica in the reader's rack. */
final class KeraSplitReader implements SplitReader<KeraRecord, LaneSplit> {
    private static final Logger LOG = LoggerFactory.getLogger(KeraSplitReader.class);
    private static final int READ_BYTES = 1 << 20;
    /** While no lane has anything, one of them is waited for, so long. */
    private static final int WAIT_MILLIS = 50;
    private static final long PAUSE_NANOS = Duration.ofMillis(50).toNanos();
    /** A broker that does not answer holds up the lanes of others for so long, once. */
    static final Duration PATIENCE = Duration.ofMillis(200);
    /** How far a reader has passed over keys that others have is noted so often. */
    private static final long PASS_NANOS = Duration.ofMillis(200).toNanos();
    /** In place of headers: the record says only that everything up to it was read, and the others' keys are passed over. */
    private static final List<KeraRecord.Header> PASSED = Collections.unmodifiableList(new ArrayList<>());
    /** While lanes of a stream cannot be read, who owns them is looked up so often. */
    private static final long LOOK_NANOS = Duration.ofMillis(200).toNanos();

    /** A lane that is read. */
    private static final class Open {
        private LaneSplit split;
        private LaneReader reader;
        private String owner = "";
        private boolean paused;
        /** Records that could be read when it was read last. */
        private long behind;
        private final Slices slices;
        /** Up to where the source knows that it was read, */
        private long known;
        /** and since when. */
        private long knownSince = System.nanoTime();
        /** When it is tried again after an error. */
        private long notBefore = System.nanoTime();

        Open(LaneSplit split) {
            this.split = split;
            slices = Slices.ofBits(split.slices());
            known = split.position();
            behind = split.isRange() ? LaneReader.behind(split.position(), split.end()) : 0;
        }
    }

    /** A stream, when it was looked up, and whether a lane of it could not be read since. */
    private record LookedUp(StreamInfo stream, long nanos, boolean isDoubted) {}

    private final SourceSettings settings;
    private final OwnerConnections connections;
    private final Admin admin;
    private final Map<String, Open> lanes = new LinkedHashMap<>();
    /** As they were looked up last. */
    private final Map<String, LookedUp> streams = new HashMap<>();
    /** As splits have them, or as they were looked up first. */
    private final StreamIds ids;
    private final Silence silence;
    private final ReadMetrics metrics;
    private volatile boolean awake;

    /** @param rack empty: none */
    KeraSplitReader(SourceSettings settings, String rack, StreamIds ids, ReadMetrics metrics) throws IOException {
        this(settings, rack, ids, metrics, new Silence());
    }

    KeraSplitReader(SourceSettings settings, String rack, StreamIds ids, ReadMetrics metrics, Silence silence)
            throws IOException {
        this.settings = settings;
        this.ids = ids;
        this.silence = silence;
        this.metrics = metrics;
        ConnectOptions options = settings.connection().options();
        connections = new OwnerConnections(options, PATIENCE, rack);
        admin = new Admin(settings.bootstrap(), options);
    }

    @Override
    public RecordsWithSplitIds<KeraRecord> fetch() throws IOException {
        RecordsBySplits.Builder<KeraRecord> found = new RecordsBySplits.Builder<>();
        boolean any = false;
        for (Open open : List.copyOf(lanes.values())) {
            any |= read(open, 0, found);
        }
        if (!any && !awake) {
            Open next = nextReadable();
            if (next != null) {
                read(next, WAIT_MILLIS, found);
            } else {
                pause();
            }
        }
        awake = false;
        metrics.behind(lanes.values().stream().mapToLong(open -> open.behind).sum());
        return found.build();
    }

    /** The lane that waits longest for its turn; null if none can be read now. */
    private Open nextReadable() {
        long now = System.nanoTime();
        for (Map.Entry<String, Open> each : lanes.entrySet()) {
            Open open = each.getValue();
            if (!open.paused && open.notBefore - now <= 0) {
                // It goes to the end, so that each gets its turn.
                lanes.remove(each.getKey());
                lanes.put(each.getKey(), open);
                return open;
            }
        }
        return null;
    }

    private synchronized void pause() {
        try {
            if (!awake) {
                wait(WAIT_MILLIS);
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** True if there was something, be it the end. */
    private boolean read(Open open, int waitMillis, RecordsBySplits.Builder<KeraRecord> found) throws IOException {
        if (open.paused || open.notBefore - System.nanoTime() > 0) {
            return false;
        }
        String id = open.split.splitId();
        long begun = System.nanoTime();
        try {
            open(open);
            long replicaBytes = open.reader.replicaBytes();
            List<KeraRecord> records = open.reader.read(READ_BYTES, waitMillis);
            silence.ended(id);
            open.split = open.split.at(open.reader.position());
            open.behind = open.reader.behind() * open.slices.count() / Slices.COUNT;
            records = own(open, records);
            metrics.read(records);
            metrics.readNear(open.reader.replicaBytes() - replicaBytes);
            found.addAll(id, records);
            if (open.reader.finished()) {
                found.addFinishedSplit(id);
                lanes.remove(id);
                return true;
            }
            return !records.isEmpty();
        } catch (IOException error) {
            if (!(error instanceof SilentBrokerException)) {
                open.reader = null;
            }
            streams.computeIfPresent(open.split.stream(), (name, seen) -> new LookedUp(seen.stream(), seen.nanos(), true));
            lost(open, error, begun);
            return false;
        }
    }

    /** Those whose keys are the split's; and, from time to time, how far the others' were passed over. */
    private static List<KeraRecord> own(Open open, List<KeraRecord> records) {
        if (!open.slices.areShared()) {
            return records;
        }
        List<KeraRecord> own = new ArrayList<>(records);
        own.removeIf(record -> !open.slices.contains(record.key(), record.ordinal()));
        long now = System.nanoTime();
        if (!own.isEmpty()) {
            open.known = own.get(own.size() - 1).ordinal() + 1;
            open.knownSince = now;
        }
        long position = open.split.position();
        if (position > open.known && now - open.knownSince > PASS_NANOS) {
            own.add(new KeraRecord(position - 1, 0, null, null, PASSED));
            open.known = position;
            open.knownSince = now;
        }
        return own;
    }

    /** Whether it is no record, and only says that everything up to it was read. */
    static boolean isPassed(KeraRecord record) {
        return record.headers() == PASSED;
    }

    /** Has the lane read from its owner, which may be another one than before. */
    private void open(Open open) throws IOException {
        LaneSplit split = open.split;
        StreamInfo stream = stream(split.stream());
        String owner = stream.owner(split.streamlet());
        if (open.reader == null || !owner.equals(open.owner)) {
            int generation = split.generation() < 0 ? LaneReader.ALL_GENERATIONS : split.generation();
            long end = split.end() == LaneSplit.UNBOUNDED ? LaneReader.UNBOUNDED : split.end();
            open.owner = owner;
            open.reader = null;
            open.reader = new LaneReader(
                    stream, split.streamlet(), split.lane(), split.position(), end, generation, connections);
        }
    }

    private StreamInfo stream(String name) throws IOException {
        LookedUp seen = streams.get(name);
        if (seen == null || seen.isDoubted() && System.nanoTime() - seen.nanos() > LOOK_NANOS) {
            seen = look(name);
        }
        return seen.stream();
    }

    /** @throws FlinkRuntimeException if another stream has the name by now */
    private LookedUp look(String name) throws IOException {
        LookedUp now = new LookedUp(admin.stream(name), System.nanoTime(), false);
        ids.check(name, now.stream().id());
        streams.put(name, now);
        return now;
    }

    /** What becomes of a lane that could not be read. */
    private void lost(Open open, IOException error, long begun) throws IOException {
        LaneSplit split = open.split;
        int code = error instanceof KeraException refused ? refused.code() : 0;
        IOException why = error;
        try {
            if (code == ErrorCodes.OUT_OF_RANGE && !settings.onDataLossFail()) {
                long stored = admin.bounds(split.stream(), split.streamlet(), split.lane()).start();
                if (stored > split.position()) {
                    open.split = split.at(stored);
                    LOG.warn("records of {} from {} on are gone; it goes on at {}", split.splitId(), split.position(), stored);
                    return;
                }
            } else if (code == ErrorCodes.UNKNOWN_STREAM) {
                look(split.stream());
            }
        } catch (IOException away) {
            why = away;
        }
        silence.failed(split.splitId(), split.position(), open.owner, why, begun);
        open.notBefore = System.nanoTime() + PAUSE_NANOS;
    }

    /** How many brokers it is connected to for reading. */
    int connections() {
        return connections.count();
    }

    @Override
    public void handleSplitsChanges(SplitsChange<LaneSplit> change) {
        if (!(change instanceof SplitsAddition)) {
            throw new UnsupportedOperationException("splits are only added, not " + change.getClass());
        }
        for (LaneSplit split : change.splits()) {
            ids.check(split);
            lanes.put(split.splitId(), new Open(split));
        }
    }

    @Override
    public void pauseOrResumeSplits(Collection<LaneSplit> pause, Collection<LaneSplit> resume) {
        for (LaneSplit split : pause) {
            setPaused(split, true);
        }
        for (LaneSplit split : resume) {
            setPaused(split, false);
        }
    }

    private void setPaused(LaneSplit split, boolean paused) {
        Open open = lanes.get(split.splitId());
        if (open != null) {
            open.paused = paused;
            silence.ended(split.splitId());
        }
    }

    @Override
    public synchronized void wakeUp() {
        awake = true;
        notifyAll();
    }

    @Override
    public void close() {
        connections.close();
        metrics.behind(0);
        metrics.waiting(0);
        admin.close();
    }
}
