package io.kera.flink;

import io.kera.client.LoginException;
import io.kera.flink.StreamLook.Found;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.connector.source.SourceEvent;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.connector.source.SplitsAssignment;
import org.apache.flink.util.FlinkRuntimeException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Looks at streams, and lets a {@link LanePlan} decide for each. It joins no consumer group and holds no lease. */
final class KeraEnumerator implements SplitEnumerator<LaneSplit, EnumeratorState> {
    private static final Logger LOG = LoggerFactory.getLogger(KeraEnumerator.class);
    private final SplitEnumeratorContext<LaneSplit> context;
    private final SourceSettings settings;
    private final StreamLook look;
    private final Map<String, LanePlan> plans = new HashMap<>();

    /** @param restored what a checkpoint has; null for a job that begins */
    KeraEnumerator(SplitEnumeratorContext<LaneSplit> context, SourceSettings settings, EnumeratorState restored)
            throws IOException {
        this.context = context;
        this.settings = settings;
        look = new StreamLook(settings);
        if (restored != null) {
            look.begun();
            for (LanePlan.State state : restored.plans()) {
                plans.put(state.stream(), LanePlan.restore(state, isOrdered()));
                look.knows(state.stream());
            }
        }
    }

    private boolean isOrdered() {
        return settings.growth() != Growth.UNORDERED;
    }

    @Override
    public void start() {
        if (!look.isBegun()) {
            // At once: every checkpoint has the positions at which the job begins.
            try {
                take(look.look());
                look.begun();
            } catch (IOException error) {
                throw new FlinkRuntimeException("the streams cannot be looked up: " + error.getMessage(), error);
            }
        }
        if (!settings.bounded()) {
            context.callAsync(look::look, this::seen, settings.discoveryMillis(), settings.discoveryMillis());
        }
        checkGrowth();
    }

    private void seen(Found found, Throwable error) {
        if (error == null) {
            take(found);
        } else if (error instanceof LoginException) {
            throw new FlinkRuntimeException("the streams cannot be looked up: " + error.getMessage(), error);
        } else {
            LOG.warn("whether lanes have grown is not known: {}", error.getMessage());
        }
    }

    private void take(Found found) {
        for (StreamLook.Fresh fresh : found.fresh()) {
            String stream = fresh.info().name();
            // Two looks may have found it.
            plans.computeIfAbsent(stream, any -> LanePlan.begin(
                    stream, fresh.info().byKey(), fresh.grown(), fresh.bounds(), isOrdered(), settings.bounded()));
            look.knows(stream);
        }
        found.grown().forEach((stream, generations) -> {
            LanePlan plan = plans.get(stream);
            if (plan.generations() < generations.all().size()) {
                LOG.info("the lanes of stream {} have grown", stream);
                plan.grown(generations);
            }
        });
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
                    .forEach((reader, splits) ->
                            all.computeIfAbsent(reader, any -> new ArrayList<>()).addAll(splits));
        }
        if (!all.isEmpty()) {
            context.assignSplits(new SplitsAssignment<>(all));
        }
        if (settings.bounded() && plans.values().stream().allMatch(LanePlan::isAssigned)) {
            context.registeredReaders().keySet().forEach(context::signalNoMoreSplits);
        }
    }

    @Override
    public void handleSourceEvent(int subtask, SourceEvent event) {
        if (event instanceof SplitsFinished finished) {
            List<String> recorded = new ArrayList<>();
            plans.values().forEach(plan -> recorded.addAll(plan.finished(finished.ids(), subtask)));
            tell(subtask, recorded);
        }
    }

    private void tell(int subtask, List<String> recorded) {
        if (!recorded.isEmpty() && context.registeredReaders().containsKey(subtask)) {
            context.sendEventToSourceReader(subtask, new FinishRecorded(List.copyOf(recorded)));
        }
    }

    @Override
    public EnumeratorState snapshotState(long checkpoint) {
        return new EnumeratorState(plans.values().stream().map(plan -> plan.snapshot(checkpoint)).toList(), List.of());
    }

    @Override
    public void notifyCheckpointComplete(long checkpoint) {
        plans.values().forEach(plan -> plan.completed(checkpoint).forEach(this::tell));
        assign();
    }

    @Override
    public void close() {
        look.close();
    }
}
