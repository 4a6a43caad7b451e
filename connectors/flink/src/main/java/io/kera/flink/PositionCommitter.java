package io.kera.flink;

import io.kera.client.Admin;
import io.kera.client.LanePosition;
import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicReference;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Shows where a job stands as a consumer group's positions, of completed checkpoints. Nothing is read from there: the
 * job's positions are those in its checkpoints.
 */
final class PositionCommitter implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(PositionCommitter.class);

    private final SourceSettings settings;
    private final TreeMap<Long, List<LanePosition>> taken = new TreeMap<>();
    private final AtomicReference<List<LanePosition>> newest = new AtomicReference<>();
    private final ExecutorService thread;

    PositionCommitter(SourceSettings settings) {
        this.settings = settings;
        thread = settings.group() == null ? null : Executors.newSingleThreadExecutor(work -> {
            Thread made = new Thread(work, "kera-positions");
            made.setDaemon(true);
            return made;
        });
    }

    /** The positions of a checkpoint that may complete. */
    void taken(long checkpoint, List<LaneSplit> splits) {
        if (thread == null) {
            return;
        }
        // Of two generations of a lane the later one counts.
        Map<List<Integer>, LaneSplit> lanes = new HashMap<>();
        for (LaneSplit split : splits) {
            lanes.merge(List.of(split.streamlet(), split.lane()), split, (one, other) ->
                    one.position() < other.position() ? other : one);
        }
        taken.put(checkpoint, lanes.values().stream()
                .map(split -> new LanePosition(split.streamlet(), split.lane(), split.position()))
                .toList());
    }

    /** That checkpoint does not complete. */
    void aborted(long checkpoint) {
        taken.remove(checkpoint);
    }

    /** That checkpoint is complete. Returns at once. */
    void completed(long checkpoint) {
        if (thread == null) {
            return;
        }
        List<LanePosition> positions = taken.get(checkpoint);
        taken.headMap(checkpoint, true).clear();
        if (positions != null && !positions.isEmpty() && newest.getAndSet(positions) == null) {
            thread.execute(this::commit);
        }
    }

    private void commit() {
        List<LanePosition> positions = newest.getAndSet(null);
        try (Admin admin = new Admin(settings.bootstrap(), settings.connection().options())) {
            admin.commitPositions(settings.group(), settings.streams().get(0), positions);
        } catch (IOException | RuntimeException error) {
            LOG.warn("group {} does not show where the job stands: {}", settings.group(), error.getMessage());
        }
    }

    @Override
    public void close() {
        if (thread != null) {
            thread.shutdownNow();
        }
    }
}
