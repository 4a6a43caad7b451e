package io.kera.flink;

import io.kera.flink.PositionsTaken.Taken;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** What readers told of their positions in checkpoints that are under way. Without I/O; not thread-safe. */
final class TakenPositions {
    private final TreeMap<Long, Map<Integer, List<Taken>>> byCheckpoint = new TreeMap<>();

    void taken(int reader, PositionsTaken positions) {
        byCheckpoint.computeIfAbsent(positions.checkpoint(), any -> new HashMap<>()).put(reader, positions.splits());
    }

    /** A checkpoint does not complete. */
    void aborted(long checkpoint) {
        byCheckpoint.remove(checkpoint);
    }

    /** A checkpoint is complete: what readers told of it, by reader. Those before it are forgotten. */
    Map<Integer, List<Taken>> completed(long checkpoint) {
        Map<Integer, List<Taken>> told = byCheckpoint.getOrDefault(checkpoint, Map.of());
        byCheckpoint.headMap(checkpoint, true).clear();
        return told;
    }
}
