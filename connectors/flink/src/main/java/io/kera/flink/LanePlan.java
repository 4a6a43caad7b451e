package io.kera.flink;

import io.kera.client.Generations;
import io.kera.client.Generations.Barrier;
import io.kera.client.Generations.Generation;
import io.kera.client.LanePosition;
import io.kera.client.Partitions;
import io.kera.client.Slices;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.IntPredicate;

/**
 * Which parts of a stream's lanes are read, by whom, and in which order: the enumerator as a state machine without I/O.
 *
 * <p>Keys keep their order while lanes grow: a part of a later generation is assigned only after a <em>completed</em>
 * checkpoint has all that its barrier asks for as finished. A report alone is not enough: records that were read before
 * may still be on their way to operators, behind those of the new part. Not thread-safe.
 */
final class LanePlan {
    /** In place of a number of shares: lanes are read whole. */
    static final int UNSHARED = 0;

    /** What becomes of a part. */
    enum Status {
        /** Its barrier is closed, or no reader is there. */
        PENDING,
        /** A reader has it, and keeps its position in checkpoints. */
        ASSIGNED,
        /** It was read to its end. */
        FINISHED
    }

    /** Where a stream's lanes begin, and end where that is known; by streamlet and lane. */
    record Bounds(Map<LaneId, Long> starts, Map<LaneId, Long> ends) {}

    /** A lane. */
    record LaneId(int streamlet, int lane) {}

    /** A part as a checkpoint has it. */
    record PartState(LaneSplit split, Status status) {}

    /** A generation as a checkpoint has it. */
    record GenerationState(int partitions, Barrier barrier) {}

    /**
     * Everything that a checkpoint has.
     *
     * @param shares by how many readers the keys of each lane are shared; {@link #UNSHARED}
     */
    record State(
            String stream,
            boolean byKey,
            int streamlets,
            boolean bounded,
            int shares,
            List<GenerationState> generations,
            List<PartState> parts) {}

    private static final class Part {
        private final LaneSplit split;
        private Status status;
        /** Who reported it finished last; -1: nobody since the start. */
        private int reporter = -1;

        Part(LaneSplit split, Status status) {
            this.split = split;
            this.status = status;
        }
    }

    private final String stream;
    private final boolean byKey;
    private final int streamlets;
    private final boolean ordered;
    private final boolean bounded;
    private final int shares;
    private final List<GenerationState> generations = new ArrayList<>();
    /** By id, in the order in which they came. */
    private final Map<String, Part> parts = new TreeMap<>();
    /** Finished, and a completed checkpoint says so. */
    private final Set<String> durable = new HashSet<>();
    /** How far readers had come in splits, in checkpoints that are complete; by id. */
    private final Map<String, Long> reached = new HashMap<>();
    /** Which of them readers had read to their end there. */
    private final Set<String> read = new HashSet<>();
    /** What was finished when each checkpoint that is under way was taken. */
    private final TreeMap<Long, Set<String>> taken = new TreeMap<>();

    private LanePlan(String stream, boolean byKey, int streamlets, boolean ordered, boolean bounded, int shares) {
        this.stream = stream;
        this.byKey = byKey;
        this.streamlets = streamlets;
        this.ordered = ordered;
        this.bounded = bounded;
        this.shares = shares;
    }

    /**
     * A plan for a job that starts.
     *
     * @param ordered whether barriers are kept
     * @param bounded whether the bounds have an end for each lane; lanes that come later are not read then
     * @param shares by how many readers the keys of each lane are shared; {@link #UNSHARED}: each is read by one, whole
     */
    static LanePlan begin(
            String stream, boolean byKey, Generations grown, Bounds bounds, boolean ordered, boolean bounded, int shares) {
        LanePlan plan = new LanePlan(stream, byKey, grown.streamlets(), ordered, bounded, shares);
        plan.add(grown, bounds);
        return plan;
    }

    /** The plan as a checkpoint has it. That checkpoint is complete: what it has as finished is so for good. */
    static LanePlan restore(State state, boolean ordered) {
        LanePlan plan = new LanePlan(
                state.stream(), state.byKey(), state.streamlets(), ordered, state.bounded(), state.shares());
        plan.generations.addAll(state.generations());
        for (PartState part : state.parts()) {
            plan.parts.put(part.split().splitId(), new Part(part.split(), part.status()));
            if (part.status() == Status.FINISHED) {
                plan.durable.add(part.split().splitId());
            }
        }
        return plan;
    }

    String stream() {
        return stream;
    }

    /** True if lanes that are added later are read too. */
    boolean follows() {
        return !bounded;
    }

    /** True if some part waits for a completed checkpoint, and not only for a reader. */
    boolean hasClosedBarrier() {
        boolean[][] open = openGenerations();
        for (Part part : parts.values()) {
            if (part.status == Status.PENDING && !isOpen(part.split, open)) {
                return true;
            }
        }
        return false;
    }

    /** Generations that are known. */
    int generations() {
        return generations.size();
    }

    /** The stream's lanes have grown, or not. */
    void grown(Generations now) {
        if (!bounded) {
            add(now, new Bounds(Map.of(), Map.of()));
        }
    }

    private void add(Generations grown, Bounds bounds) {
        for (int number = generations.size(); number < grown.all().size(); number++) {
            Generation generation = grown.all().get(number);
            generations.add(new GenerationState(generation.partitions(), generation.barrier()));
            Map<LaneId, Long> begins = byKey ? boundaries(generation) : Map.of();
            boolean last = number + 1 == grown.all().size();
            Map<LaneId, Long> ends = byKey && !last ? boundaries(grown.all().get(number + 1)) : Map.of();
            // Where keys choose no lanes there are no boundaries: a lane goes on as it was.
            int first = byKey || number == 0 ? 0 : grown.all().get(number - 1).partitions();
            for (int partition = first; partition < generation.partitions(); partition++) {
                LaneId lane = new LaneId(
                        Partitions.streamlet(partition, streamlets), Partitions.lane(partition, streamlets));
                long start = Math.max(begins.getOrDefault(lane, 0L), bounds.starts().getOrDefault(lane, 0L));
                long end = ends.getOrDefault(lane, Long.MAX_VALUE);
                if (bounded) {
                    end = Math.min(end, bounds.ends().getOrDefault(lane, 0L));
                }
                add(number, lane, start, end == Long.MAX_VALUE ? LaneSplit.UNBOUNDED : end);
            }
        }
    }

    private void add(int generation, LaneId lane, long start, long end) {
        int of = byKey ? generation : LaneSplit.ANY_GENERATION;
        // On the wire an end of 0 is none: an empty part must not be read.
        boolean empty = end != LaneSplit.UNBOUNDED && start >= end;
        LaneSplit whole = new LaneSplit(stream, lane.streamlet(), lane.lane(), of, start, end, false);
        for (int share = 0; share < Math.max(1, shares); share++) {
            LaneSplit split = whole.ofSlices(Slices.share(share, Math.max(1, shares)).bits());
            parts.put(split.splitId(), new Part(split, empty ? Status.FINISHED : Status.PENDING));
            if (empty) {
                durable.add(split.splitId());
            }
        }
    }

    private static Map<LaneId, Long> boundaries(Generation generation) {
        Map<LaneId, Long> boundaries = new HashMap<>();
        for (LanePosition each : generation.boundaries()) {
            boundaries.put(new LaneId(each.streamlet(), each.lane()), each.ordinal());
        }
        return boundaries;
    }

    /** Whether the barrier before each generation is open, by streamlet. */
    private boolean[][] openGenerations() {
        boolean[][] open = new boolean[generations.size()][streamlets];
        boolean[][] done = new boolean[generations.size()][streamlets];
        for (boolean[] each : done) {
            java.util.Arrays.fill(each, true);
        }
        for (Part part : parts.values()) {
            int generation = part.split.generation();
            if (generation >= 0 && !durable.contains(part.split.splitId())) {
                done[generation][part.split.streamlet()] = false;
            }
        }
        for (int number = 0; number < generations.size(); number++) {
            boolean all = true;
            for (int streamlet = 0; number > 0 && streamlet < streamlets; streamlet++) {
                all &= open[number - 1][streamlet] && done[number - 1][streamlet];
            }
            for (int streamlet = 0; streamlet < streamlets; streamlet++) {
                open[number][streamlet] = number == 0 || !ordered || switch (generations.get(number).barrier()) {
                    case NONE -> true;
                    case STREAMLET -> open[number - 1][streamlet] && done[number - 1][streamlet];
                    case STREAM -> all;
                };
            }
        }
        return open;
    }

    private static boolean isOpen(LaneSplit split, boolean[][] open) {
        return split.generation() < 0 || open[split.generation()][split.streamlet()];
    }

    /** Assigns what may be read now to the readers that are there. */
    Map<Integer, List<LaneSplit>> assign(int parallelism, IntPredicate isThere) {
        Map<Integer, List<LaneSplit>> assigned = new TreeMap<>();
        boolean[][] open = openGenerations();
        for (Part part : parts.values()) {
            LaneSplit split = part.split;
            int reader = reader(split, parallelism);
            if (part.status == Status.PENDING && isThere.test(reader) && isOpen(split, open)) {
                part.status = Status.ASSIGNED;
                assigned.computeIfAbsent(reader, any -> new ArrayList<>()).add(split);
            }
        }
        return assigned;
    }

    private int reader(LaneSplit split, int parallelism) {
        int partition = split.lane() * streamlets + split.streamlet();
        int each = Math.max(1, shares);
        // Shares begin at slices 64 * n / shares, rounded down.
        int share = (Long.numberOfTrailingZeros(split.slices()) * each + Slices.COUNT - 1) / Slices.COUNT;
        return Math.floorMod(stream.hashCode() + partition * each + share, parallelism);
    }

    /** True if some part waits for a reader, perhaps behind a barrier. */
    boolean hasPending(int reader, int parallelism) {
        return parts.values().stream()
                .anyMatch(part -> part.status == Status.PENDING && reader(part.split, parallelism) == reader);
    }

    /** True if nothing is left to assign, and nothing will come. */
    boolean isAssigned() {
        return bounded && parts.values().stream().noneMatch(part -> part.status == Status.PENDING);
    }

    /** A completed checkpoint has a split at this ordinal; {@code isFinished}: as read to its end. */
    void reached(String id, long ordinal, boolean isFinished) {
        if (parts.containsKey(id)) {
            reached.merge(id, ordinal, Math::max);
            if (isFinished) {
                read.add(id);
            }
        }
    }

    /**
     * From where on the last completed checkpoint needs each lane, if what it has is {@link #reached}: none needs anything below. A lane
     * of which that is not known is left out.
     */
    List<LanePosition> needed() {
        Map<LaneId, Long> lowest = new LinkedHashMap<>();
        Map<LaneId, Long> ends = new LinkedHashMap<>();
        parts.forEach((id, part) -> {
            LaneSplit split = part.split;
            LaneId lane = new LaneId(split.streamlet(), split.lane());
            if (!durable.contains(id)) {
                lowest.merge(lane, reached.getOrDefault(id, split.position()), Math::min);
            } else if (reached.containsKey(id) || split.end() != LaneSplit.UNBOUNDED) {
                ends.merge(lane, reached.getOrDefault(id, split.end()), Math::max);
            }
        });
        ends.forEach(lowest::putIfAbsent);
        return lowest.entrySet().stream()
                .map(each -> new LanePosition(each.getKey().streamlet(), each.getKey().lane(), each.getValue()))
                .toList();
    }

    /** True if everything was read, and a completed checkpoint says so. */
    boolean isDone() {
        return bounded && parts.keySet().stream().allMatch(id -> durable.contains(id) || read.contains(id));
    }

    /** True if everything was read. */
    boolean isFinished() {
        return bounded && parts.values().stream().allMatch(part -> part.status == Status.FINISHED);
    }

    /**
     * A reader says that it has read splits to their end; it may say so again. Returns those that it need not keep any
     * more.
     */
    List<String> finished(Collection<String> ids, int reader) {
        List<String> known = new ArrayList<>();
        for (String id : ids) {
            Part part = parts.get(id);
            if (part == null) {
                continue;
            }
            part.status = Status.FINISHED;
            part.reporter = reader;
            if (durable.contains(id)) {
                known.add(id);
            }
        }
        return known;
    }

    /** What a reader has reported and need not keep any more: it was not registered yet when that was told. */
    List<String> known(int reader) {
        List<String> known = new ArrayList<>();
        parts.forEach((id, part) -> {
            if (part.reporter == reader && durable.contains(id)) {
                known.add(id);
            }
        });
        return known;
    }

    /** A checkpoint does not complete. */
    void aborted(long checkpoint) {
        taken.remove(checkpoint);
    }

    /**
     * A reader failed, and goes on from the last completed checkpoint. These were assigned to it since; what it reported
     * since then was read by somebody who is not there any more.
     */
    void takeBack(Collection<LaneSplit> splits, int reader) {
        for (Map.Entry<String, Part> each : parts.entrySet()) {
            Part part = each.getValue();
            if (part.status == Status.FINISHED && part.reporter == reader && !durable.contains(each.getKey())) {
                part.status = Status.ASSIGNED;
                part.reporter = -1;
                taken.values().forEach(finished -> finished.remove(each.getKey()));
            }
        }
        for (LaneSplit split : splits) {
            Part part = parts.get(split.splitId());
            if (part != null && !durable.contains(split.splitId())) {
                part.status = Status.PENDING;
            }
        }
    }

    /** The state for a checkpoint. */
    State snapshot(long checkpoint) {
        Set<String> finished = new HashSet<>();
        List<PartState> states = new ArrayList<>();
        parts.forEach((id, part) -> {
            states.add(new PartState(part.split, part.status));
            if (part.status == Status.FINISHED) {
                finished.add(id);
            }
        });
        taken.put(checkpoint, finished);
        return new State(stream, byKey, streamlets, bounded, shares, List.copyOf(generations), states);
    }

    /** A checkpoint is complete. Returns which splits each reader need not keep any more. */
    Map<Integer, List<String>> completed(long checkpoint) {
        Map<Integer, List<String>> known = new TreeMap<>();
        Set<String> finished = taken.getOrDefault(checkpoint, Set.of());
        for (String id : finished) {
            Part part = parts.get(id);
            if (durable.add(id) && part.reporter >= 0) {
                known.computeIfAbsent(part.reporter, any -> new ArrayList<>()).add(id);
            }
        }
        taken.headMap(checkpoint, true).clear();
        return known;
    }
}
