package io.kera.flink;

import io.kera.client.Generations;
import io.kera.client.Slices;
import io.kera.flink.PositionsTaken.Taken;
import io.kera.flink.StreamLook.Fresh;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.flink.api.connector.source.SourceEvent;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.connector.source.SplitsAssignment;
import org.apache.flink.util.FlinkRuntimeException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Gives lanes to readers as a {@link LanePlan} decides for each stream. */
final class KeraEnumerator extends StreamEnumerator<LanePlan> {
    private static final Logger LOG = LoggerFactory.getLogger(KeraEnumerator.class);
    /** The readers that know that nothing more comes: told again, one that has finished meanwhile would fail the job. */
    private final Set<Integer> told = new HashSet<>();
    /** The readers that know that no split waits for them. */
    private final Set<Integer> without = new HashSet<>();

    /** @param restored what a checkpoint has; null for a job that begins */
    KeraEnumerator(SplitEnumeratorContext<LaneSplit> context, SourceSettings settings, EnumeratorState restored)
            throws IOException {
        super(context, settings);
        if (restored != null) {
            look.begun();
            restored(restored.ids());
            restored.plans().forEach(state -> restored(state.stream(), LanePlan.restore(state, isOrdered())));
        }
    }

    private boolean isOrdered() {
        return settings.growth() != Growth.UNORDERED;
    }

    @Override
    public void start() {
        super.start();
        checkGrowth();
    }

    @Override
    LanePlan begin(Fresh stream) {
        return LanePlan.begin(stream.info().name(), stream.info().byKey(), stream.grown(), stream.bounds(), isOrdered(),
                settings.bounded(), settings.order() == Order.KEY ? shares(stream.info().partitions()) : LanePlan.UNSHARED);
    }

    /** So many to a lane that each reader has one, if nobody says otherwise. */
    private int shares(int lanes) {
        int each = (context.currentParallelism() + lanes - 1) / lanes;
        return settings.keyShares() > 0 ? settings.keyShares() : Math.min(Slices.COUNT, each);
    }

    @Override
    void grown(LanePlan plan, Generations generations) {
        if (plan.generations() < generations.all().size()) {
            LOG.info("the lanes of stream {} have grown", plan.stream());
            plan.grown(generations);
        }
    }

    @Override
    void planned() {
        checkGrowth();
        assign();
    }

    private void checkGrowth() {
        if (settings.growth() != Growth.REFUSED) {
            return;
        }
        for (LanePlan plan : plans.values()) {
            if (plan.hasClosedBarrier()) {
                throw new FlinkRuntimeException("stream " + plan.stream() + " has grown, and " + settings.noOrder()
                        + "; choose scan.growth = unordered to read it all the same");
            }
        }
    }

    @Override
    public void handleSplitRequest(int subtask, String host) {
        // Splits are assigned as soon as they may be read.
    }

    @Override
    public void addReader(int subtask) {
        told.remove(subtask);
        without.remove(subtask);
        // A reader reports before it is registered, after a restore even what is in all checkpoints.
        plans.values().forEach(plan -> tell(subtask, plan.known(subtask)));
        assign();
    }

    @Override
    public void addSplitsBack(List<LaneSplit> splits, int subtask) {
        plans.values().forEach(plan -> plan.takeBack(of(plan, splits), subtask));
        assign();
    }

    private static List<LaneSplit> of(LanePlan plan, List<LaneSplit> splits) {
        return splits.stream().filter(split -> split.stream().equals(plan.stream())).toList();
    }

    private void assign() {
        Map<Integer, List<LaneSplit>> all = new HashMap<>();
        for (LanePlan plan : plans.values()) {
            plan.assign(context.currentParallelism(), reader -> context.registeredReaders().containsKey(reader))
                    .forEach((reader, splits) -> splits.forEach(split ->
                            all.computeIfAbsent(reader, any -> new ArrayList<>()).add(ids.identified(split))));
        }
        if (!all.isEmpty()) {
            context.assignSplits(new SplitsAssignment<>(all));
        }
        tellWithout();
        if (settings.bounded() && plans.values().stream().allMatch(LanePlan::isAssigned)) {
            context.registeredReaders().keySet().stream().filter(told::add).forEach(context::signalNoMoreSplits);
        }
    }

    /** A reader that has no split, and gets none as things are, is not to hold up watermarks. */
    private void tellWithout() {
        int parallelism = context.currentParallelism();
        // Before the first look nothing is known of what will be assigned.
        if (look.isBegun() && !settings.bounded()) {
            context.registeredReaders().keySet().stream()
                    .filter(reader -> plans.values().stream().noneMatch(plan -> plan.hasPending(reader, parallelism)))
                    .filter(without::add)
                    .forEach(reader -> context.sendEventToSourceReader(reader, new WithoutSplits()));
        }
    }

    @Override
    public void handleSourceEvent(int subtask, SourceEvent event) {
        if (event instanceof SplitsFinished finished) {
            List<String> recorded = new ArrayList<>();
            plans.values().forEach(plan -> recorded.addAll(plan.finished(finished.ids(), subtask)));
            tell(subtask, recorded);
        } else {
            super.handleSourceEvent(subtask, event);
        }
    }

    private void tell(int subtask, List<String> recorded) {
        if (!recorded.isEmpty() && context.registeredReaders().containsKey(subtask)) {
            context.sendEventToSourceReader(subtask, new FinishRecorded(List.copyOf(recorded)));
        }
    }

    @Override
    public EnumeratorState snapshotState(long checkpoint) {
        return new EnumeratorState(plans.values().stream().map(plan -> plan.snapshot(checkpoint)).toList(), List.of(), ids.all());
    }

    @Override
    public void notifyCheckpointAborted(long checkpoint) {
        super.notifyCheckpointAborted(checkpoint);
        plans.values().forEach(plan -> plan.aborted(checkpoint));
    }

    @Override
    public void notifyCheckpointComplete(long checkpoint) {
        plans.values().forEach(plan -> plan.completed(checkpoint).forEach(this::tell));
        if (isPinning()) {
            taken.completed(checkpoint).values().forEach(splits -> splits.forEach(this::reached));
            // Before anything is assigned anew: that comes behind the checkpoint.
            plans.values().forEach(plan -> pin(plan.stream(), plan.needed(), plan.isDone()));
        }
        assign();
    }

    private void reached(Taken split) {
        LanePlan plan = plans.get(split.stream());
        if (plan != null) {
            plan.reached(split.id(), split.position(), split.finished());
        }
    }
}
