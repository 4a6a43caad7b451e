package io.kera.flink;

import io.kera.client.ErrorCodes;
import io.kera.client.Generations;
import io.kera.client.KeraException;
import io.kera.client.LaneCutter;
import io.kera.flink.PositionsTaken.Taken;
import io.kera.flink.RangePlan.Uncut;
import io.kera.flink.StreamLook.Fresh;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.util.FlinkRuntimeException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Cuts ranges off lanes as readers ask for them, so that several readers share a lane. */
final class RangeEnumerator extends StreamEnumerator<RangePlan> {
    private static final Logger LOG = LoggerFactory.getLogger(RangeEnumerator.class);
    private static final int RANGE_BYTES = 256 << 10;
    /** While readers wait for records, lanes are looked at so often. */
    private static final long LOOK_MILLIS = 20;
    /** A reader that waits for so many looks is idle. */
    private static final int IDLE_LOOKS = 10;
    /** Readers are told every so many looks how many records wait. */
    private static final int TELL_LOOKS = 25;

    /** A range that was cut off a lane as it was known. */
    private record Cut(String stream, Uncut lane, LaneCutter.Range range) {}

    /** What can be cut, and how many ranges are wanted. */
    private record Wanted(Map<String, List<Uncut>> lanes, int ranges) {}

    private final LaneCutter cutter;
    /** The plans as checkpoints that are under way have them, if their positions are pinned. */
    private final TreeMap<Long, List<RangePlan.State>> plansTaken = new TreeMap<>();
    /** Readers that hold no range, and get none any more: they end, and tell no positions. */
    private final Set<Integer> ended = new HashSet<>();
    /** Readers without a split, first come, first served. */
    private final Set<Integer> waiting = new LinkedHashSet<>();
    /** For how many looks each of them has waited. */
    private final Map<Integer, Integer> looks = new HashMap<>();
    private final LaneHeads heads;
    /** The share of the records that wait which each reader was told. */
    private final Map<Integer, Long> told = new HashMap<>();
    private int looksSinceTold;
    /** Lanes take turns. Only for the thread that cuts. */
    private int turn;
    /** Only for the thread that cuts. */
    private final Silence silence = new Silence();
    private volatile Wanted wanted = new Wanted(Map.of(), 0);

    /** @param restored what a checkpoint has; null for a job that begins */
    RangeEnumerator(SplitEnumeratorContext<LaneSplit> context, SourceSettings settings, EnumeratorState restored)
            throws IOException {
        super(context, settings);
        heads = new LaneHeads(settings, look::known);
        cutter = new LaneCutter(look.admin(), settings.connection().options(), KeraSplitReader.PATIENCE);
        if (restored != null) {
            look.begun();
            restored(restored.ids());
            restored.ranges().forEach(state -> restored(state.stream(), RangePlan.restore(state)));
        }
    }

    @Override
    public void start() {
        super.start();
        heads.start();
        context.callAsync(this::cut, this::wereCut, 0, LOOK_MILLIS);
    }

    @Override
    RangePlan begin(Fresh stream) {
        return RangePlan.begin(stream.info().name(), stream.grown(), stream.bounds(), settings.bounded());
    }

    @Override
    void grown(RangePlan plan, Generations generations) {
        plan.grown(generations);
    }

    @Override
    void planned() {
        serve();
    }

    /** On a thread that may wait: as many ranges as are wanted, lane by lane. */
    private List<Cut> cut() throws IOException {
        Wanted now = wanted;
        List<Cut> cuts = new ArrayList<>();
        List<Cut> lanes = new ArrayList<>();
        now.lanes().forEach((stream, uncut) -> uncut.forEach(lane -> lanes.add(new Cut(stream, lane, null))));
        for (int n = 0; n < lanes.size() && cuts.size() < now.ranges(); n++) {
            Cut lane = lanes.get(Math.floorMod(turn++, lanes.size()));
            Uncut uncut = lane.lane();
            while (cuts.size() < now.ranges() && !uncut.isOver()) {
                LaneCutter.Range range = cut(lane.stream(), uncut);
                if (range == null) {
                    break;
                }
                cuts.add(new Cut(lane.stream(), uncut, range));
                uncut = new Uncut(uncut.streamlet(), uncut.lane(), range.end(), uncut.end());
            }
        }
        return cuts;
    }

    private LaneCutter.Range cut(String stream, Uncut lane) throws IOException {
        String name = stream + ":" + lane.streamlet() + "/" + lane.lane();
        long begun = System.nanoTime();
        try {
            LaneCutter.Range range = cutBehindLoss(stream, lane);
            silence.ended(name);
            return range;
        } catch (IOException error) {
            silence.failed(name, lane.next(), "", error, begun);
            return null;
        }
    }

    private LaneCutter.Range cutBehindLoss(String stream, Uncut lane) throws IOException {
        try {
            return cutter.cut(stream, lane.streamlet(), lane.lane(), lane.next(), RANGE_BYTES);
        } catch (KeraException error) {
            if (error.code() != ErrorCodes.OUT_OF_RANGE || settings.onDataLossFail()) {
                throw error;
            }
            long stored = look.admin().bounds(stream, lane.streamlet(), lane.lane()).start();
            if (stored <= lane.next()) {
                throw error;
            }
            LOG.warn("records of {}:{}/{} from {} on are gone; it goes on at {}", stream, lane.streamlet(), lane.lane(),
                    lane.next(), stored);
            return cutter.cut(stream, lane.streamlet(), lane.lane(), stored, RANGE_BYTES);
        }
    }

    private void wereCut(List<Cut> cuts, Throwable error) {
        if (error != null) {
            throw new FlinkRuntimeException("ranges cannot be cut: " + error.getMessage(), error);
        }
        for (Cut cut : cuts) {
            plans.get(cut.stream()).cut(cut.lane(), cut.range().start(), cut.range().end());
        }
        serve();
        tellIdle();
        tellWaiting();
    }

    /** Each reader adds a share of what no reader has to what waits in its own range, so that the sum of all is right. */
    private void tellWaiting() {
        looksSinceTold++;
        if (looksSinceTold < TELL_LOOKS) {
            return;
        }
        looksSinceTold = 0;
        long waits = plans.values().stream().mapToLong(plan -> plan.waiting(heads.of(plan.stream()))).sum();
        Set<Integer> readers = context.registeredReaders().keySet();
        told.keySet().retainAll(readers);
        int left = readers.size();
        for (Integer reader : readers) {
            long share = waits / left;
            waits -= share;
            left--;
            Long before = told.put(reader, share);
            if (before == null || before != share) {
                context.sendEventToSourceReader(reader, new WaitingRecords(share));
            }
        }
    }

    /** A reader that gets no range for a while is not to hold up watermarks. */
    private void tellIdle() {
        looks.keySet().retainAll(waiting);
        // Before the first look nothing is known of what can be cut.
        if (look.isBegun()) {
            for (Integer reader : waiting) {
                if (looks.merge(reader, 1, Integer::sum) == IDLE_LOOKS) {
                    context.sendEventToSourceReader(reader, new WithoutSplits());
                }
            }
        }
    }

    /** Gives ranges to the readers that wait, and says how many more are wanted. */
    private void serve() {
        waiting.retainAll(context.registeredReaders().keySet());
        boolean over = settings.bounded() && look.isBegun() && plans.values().stream().allMatch(RangePlan::isAssigned);
        for (Integer reader : List.copyOf(waiting)) {
            LaneSplit range = next();
            if (range != null) {
                waiting.remove(reader);
                context.assignSplit(ids.identified(range), reader);
            } else if (over) {
                waiting.remove(reader);
                ended.add(reader);
                context.signalNoMoreSplits(reader);
            }
        }
        Map<String, List<Uncut>> lanes = new LinkedHashMap<>();
        if (!waiting.isEmpty()) {
            plans.forEach((stream, plan) -> lanes.put(stream, plan.uncut()));
        }
        boolean more = wanted.ranges() == 0 && !waiting.isEmpty();
        wanted = new Wanted(lanes, waiting.size());
        if (more && look.isBegun()) {
            // Without the wait for the next look.
            context.callAsync(this::cut, this::wereCut);
        }
    }

    private LaneSplit next() {
        for (RangePlan plan : plans.values()) {
            LaneSplit range = plan.take();
            if (range != null) {
                return range;
            }
        }
        return null;
    }

    @Override
    public void handleSplitRequest(int subtask, String host) {
        waiting.add(subtask);
        looks.remove(subtask);
        serve();
    }

    @Override
    public void addReader(int subtask) {
        // It asks for a range when it has none. Another one may have been told what waits.
        told.remove(subtask);
        ended.remove(subtask);
    }

    @Override
    public void addSplitsBack(List<LaneSplit> splits, int subtask) {
        waiting.remove(subtask);
        told.remove(subtask);
        for (RangePlan plan : plans.values()) {
            plan.takeBack(splits.stream().filter(split -> split.stream().equals(plan.stream())).toList());
        }
        serve();
    }

    @Override
    public EnumeratorState snapshotState(long checkpoint) {
        List<RangePlan.State> states = plans.values().stream().map(RangePlan::snapshot).toList();
        if (isPinning()) {
            plansTaken.put(checkpoint, states);
        }
        return new EnumeratorState(List.of(), states, ids.all());
    }

    @Override
    public void notifyCheckpointAborted(long checkpoint) {
        super.notifyCheckpointAborted(checkpoint);
        plansTaken.remove(checkpoint);
    }

    @Override
    public void notifyCheckpointComplete(long checkpoint) {
        if (!isPinning()) {
            return;
        }
        List<RangePlan.State> states = plansTaken.getOrDefault(checkpoint, List.of());
        plansTaken.headMap(checkpoint, true).clear();
        Map<Integer, List<Taken>> held = taken.completed(checkpoint);
        Set<Integer> silent = new HashSet<>(context.registeredReaders().keySet());
        silent.removeAll(ended);
        silent.removeAll(held.keySet());
        if (silent.isEmpty()) {
            // What a reader does not tell of would be taken for read.
            List<Taken> all = held.values().stream().flatMap(List::stream).toList();
            states.forEach(state -> pin(state.stream(), RangePlan.needed(state, all), RangePlan.isDone(state, all)));
        }
    }

    @Override
    public void close() {
        cutter.close();
        heads.close();
        super.close();
    }
}
