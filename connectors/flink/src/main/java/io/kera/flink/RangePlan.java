package io.kera.flink;

import io.kera.client.Generations;
import io.kera.client.LanePosition;
import io.kera.client.LaneReader;
import io.kera.client.Partitions;
import io.kera.flink.LanePlan.Bounds;
import io.kera.flink.LanePlan.LaneId;
import io.kera.flink.PositionsTaken.Taken;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Which ranges of a stream's lanes are read, where no order is asked for: a state machine without I/O. Ranges are cut off
 * lanes as readers ask for them, each ordinal once: the next ordinal of each lane that is in no range yet is in every
 * checkpoint. Not thread-safe.
 */
final class RangePlan {
    /**
     * A lane as a checkpoint has it.
     *
     * @param next the next ordinal that is in no range yet
     * @param end the ordinal behind the last one to read; {@link LaneSplit#UNBOUNDED}: none
     */
    record Uncut(int streamlet, int lane, long next, long end) {
        boolean isOver() {
            return end != LaneSplit.UNBOUNDED && next >= end;
        }
    }

    /** Everything that a checkpoint has. */
    record State(String stream, int streamlets, boolean bounded, List<Uncut> lanes, List<LaneSplit> pending) {}

    private final String stream;
    private final int streamlets;
    private final boolean bounded;
    private final Map<LaneKey, Uncut> lanes = new TreeMap<>();
    /** Cut, and no reader has them. */
    private final Deque<LaneSplit> pending = new ArrayDeque<>();

    private record LaneKey(int lane, int streamlet) implements Comparable<LaneKey> {
        @Override
        public int compareTo(LaneKey other) {
            return lane != other.lane ? Integer.compare(lane, other.lane) : Integer.compare(streamlet, other.streamlet);
        }
    }

    private RangePlan(String stream, int streamlets, boolean bounded) {
        this.stream = stream;
        this.streamlets = streamlets;
        this.bounded = bounded;
    }

    /** A plan for a job that starts. */
    static RangePlan begin(String stream, Generations grown, Bounds bounds, boolean bounded) {
        RangePlan plan = new RangePlan(stream, grown.streamlets(), bounded);
        plan.add(grown, bounds);
        return plan;
    }

    /** The plan as a checkpoint has it. */
    static RangePlan restore(State state) {
        RangePlan plan = new RangePlan(state.stream(), state.streamlets(), state.bounded());
        state.lanes().forEach(lane -> plan.lanes.put(new LaneKey(lane.lane(), lane.streamlet()), lane));
        plan.pending.addAll(state.pending());
        return plan;
    }

    String stream() {
        return stream;
    }

    /** The stream's lanes have grown, or not. */
    void grown(Generations now) {
        if (!bounded) {
            add(now, new Bounds(Map.of(), Map.of()));
        }
    }

    private void add(Generations grown, Bounds bounds) {
        int partitions = grown.all().get(grown.all().size() - 1).partitions();
        for (int partition = lanes.size(); partition < partitions; partition++) {
            LaneId lane =
                    new LaneId(Partitions.streamlet(partition, streamlets), Partitions.lane(partition, streamlets));
            long end = bounded ? bounds.ends().getOrDefault(lane, 0L) : LaneSplit.UNBOUNDED;
            Uncut uncut = new Uncut(lane.streamlet(), lane.lane(), bounds.starts().getOrDefault(lane, 0L), end);
            lanes.put(new LaneKey(lane.lane(), lane.streamlet()), uncut);
        }
    }

    /** The lanes that ranges can be cut off. */
    List<Uncut> uncut() {
        return lanes.values().stream().filter(lane -> !lane.isOver()).toList();
    }

    /**
     * A range was cut off a lane, from its next ordinal on. An answer that comes late, when the lane was cut by another
     * one, is ignored.
     */
    void cut(Uncut lane, long start, long end) {
        LaneKey key = new LaneKey(lane.lane(), lane.streamlet());
        Uncut now = lanes.get(key);
        if (now == null || now.next() != lane.next() || end <= lane.next()) {
            return;
        }
        long stop = now.end() == LaneSplit.UNBOUNDED ? end : Math.min(end, now.end());
        long begin = Math.max(start, now.next());
        lanes.put(key, new Uncut(now.streamlet(), now.lane(), Math.max(stop, now.next()), now.end()));
        if (begin >= now.end() && now.end() != LaneSplit.UNBOUNDED) {
            // Only a gap was left below the end.
            lanes.put(key, new Uncut(now.streamlet(), now.lane(), now.end(), now.end()));
        } else {
            pending.add(LaneSplit.range(stream, now.streamlet(), now.lane(), begin, stop));
        }
    }

    /** A range for a reader; null if none is cut. */
    LaneSplit take() {
        return pending.poll();
    }

    /** A reader failed, and goes on from the last completed checkpoint: these were assigned to it since. */
    void takeBack(Collection<LaneSplit> splits) {
        List<LaneSplit> back = new ArrayList<>(splits);
        pending.forEach(range -> back.removeIf(split -> split.splitId().equals(range.splitId())));
        pending.addAll(back);
    }

    /** True if nothing is left to assign, and nothing will come. */
    boolean isAssigned() {
        return bounded && pending.isEmpty() && uncut().isEmpty();
    }

    /**
     * Records that no reader has, as far as it is known where lanes end. Ordinals that a loss left out count nothing.
     *
     * @param heads of lanes that are known
     */
    long waiting(Map<LaneId, Long> heads) {
        long records = 0;
        for (LaneSplit range : pending) {
            records += LaneReader.behind(range.position(), range.end());
        }
        for (Uncut lane : lanes.values()) {
            long head = heads.getOrDefault(new LaneId(lane.streamlet(), lane.lane()), lane.next());
            records += LaneReader.behind(lane.next(), lane.end() == LaneSplit.UNBOUNDED ? head : Math.min(head, lane.end()));
        }
        return records;
    }

    /**
     * From where on a completed checkpoint needs each lane.
     *
     * @param state what it has of the plan
     * @param held the ranges that readers have in it, of any stream
     */
    static List<LanePosition> needed(State state, Collection<Taken> held) {
        Map<LaneKey, Long> lowest = new TreeMap<>();
        state.lanes().forEach(lane -> lowest.put(new LaneKey(lane.lane(), lane.streamlet()), lane.next()));
        state.pending().forEach(range -> lowest.merge(new LaneKey(range.lane(), range.streamlet()), range.position(), Math::min));
        held.stream().filter(range -> range.stream().equals(state.stream())).forEach(range ->
                lowest.merge(new LaneKey(range.lane(), range.streamlet()), range.position(), Math::min));
        return lowest.entrySet().stream()
                .map(each -> new LanePosition(each.getKey().streamlet(), each.getKey().lane(), each.getValue()))
                .toList();
    }

    /** True if by a completed checkpoint everything was read. */
    static boolean isDone(State state, Collection<Taken> held) {
        return state.bounded() && state.pending().isEmpty() && state.lanes().stream().allMatch(Uncut::isOver)
                && held.stream().noneMatch(range -> range.stream().equals(state.stream()));
    }

    /** The state for a checkpoint. */
    State snapshot() {
        return new State(stream, streamlets, bounded, List.copyOf(lanes.values()), List.copyOf(pending));
    }
}
