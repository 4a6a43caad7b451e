package io.kera.flink;

import io.kera.client.Admin;
import io.kera.client.Generations;
import io.kera.client.StreamInfo;
import io.kera.flink.LanePlan.Bounds;
import io.kera.flink.LanePlan.LaneId;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;
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
    /** Attempts to look at bounds between two looks that show the same lanes. */
    private static final int LOOKS = 20;

    private final SplitEnumeratorContext<LaneSplit> context;
    private final SourceSettings settings;
    private final Admin admin;
    private final Map<String, LanePlan> plans = new HashMap<>();
    /** The streams that there are plans for; also for the thread that looks. */
    private final Set<String> known = ConcurrentHashMap.newKeySet();
    /** The streams that were there when the job began, and where they began, are known. */
    private volatile boolean isBegun;

    /** @param restored what a checkpoint has; null for a job that begins */
    KeraEnumerator(SplitEnumeratorContext<LaneSplit> context, SourceSettings settings, EnumeratorState restored)
            throws IOException {
        this.context = context;
        this.settings = settings;
        admin = new Admin(settings.bootstrap(), settings.connection().options());
        if (restored != null) {
            isBegun = true;
            for (LanePlan.State state : restored.plans()) {
                plans.put(state.stream(), LanePlan.restore(state, isOrdered()));
                known.add(state.stream());
            }
        }
    }

    private boolean isOrdered() {
        return settings.growth() != Growth.UNORDERED;
    }

    @Override
    public void start() {
        if (!isBegun) {
            // At once: every checkpoint has the positions at which the job begins.
            try {
                Found found = discover();
                isBegun = true;
                take(found);
            } catch (IOException error) {
                throw new FlinkRuntimeException("the streams cannot be looked up: " + error.getMessage(), error);
            }
        }
        if (!settings.bounded()) {
            context.callAsync(this::discover, this::seen, settings.discoveryMillis(), settings.discoveryMillis());
        }
        checkGrowth();
    }

    /** What a look found: how the known streams have grown, and plans for others. */
    private record Found(Map<String, Generations> grown, List<LanePlan> fresh) {}

    private Found discover() throws IOException {
        Map<String, Generations> grown = new HashMap<>();
        List<LanePlan> fresh = new ArrayList<>();
        for (String stream : streams()) {
            if (known.contains(stream)) {
                grown.put(stream, admin.generations(stream));
            } else {
                fresh.add(begin(stream));
            }
        }
        return new Found(grown, fresh);
    }

    private List<String> streams() throws IOException {
        if (settings.pattern() == null) {
            return settings.streams();
        }
        Pattern pattern = Pattern.compile(settings.pattern());
        return admin.streams().stream()
                .map(StreamInfo::name)
                .filter(name -> pattern.matcher(name).matches())
                .toList();
    }

    /** Positions are taken between two looks that show the same lanes: otherwise they would not be of one generation. */
    private LanePlan begin(String stream) throws IOException {
        for (int attempt = 0; attempt < LOOKS; attempt++) {
            StreamInfo info = admin.stream(stream);
            Generations before = admin.generations(stream);
            Bounds bounds = bounds(stream);
            int missing = info.partitions() - bounds.ends().size();
            if (missing > 0) {
                // Without its bounds a lane would be taken for an empty one.
                throw new IOException("where " + missing + " lanes of stream " + stream
                        + " begin and end is not known: their owners are away; try again later");
            }
            if (admin.generations(stream).all().size() == before.all().size()) {
                return LanePlan.begin(stream, info.byKey(), before, bounds, isOrdered(), settings.bounded());
            }
        }
        throw new IOException("the lanes of stream " + stream + " grow all the time; try again later");
    }

    private Bounds bounds(String stream) throws IOException {
        // What comes while the job runs is read whole.
        Start start = isBegun ? Start.earliest() : settings.start();
        List<Admin.LaneBounds> lanes = start.kind() == Start.Kind.TIMESTAMP
                ? admin.boundsFrom(stream, start.timestamp())
                : admin.bounds(stream);
        Map<LaneId, Long> starts = new HashMap<>();
        Map<LaneId, Long> ends = new HashMap<>();
        for (Admin.LaneBounds lane : lanes) {
            LaneId id = new LaneId(lane.streamlet(), lane.lane());
            starts.put(id, switch (start.kind()) {
                case EARLIEST, TIMESTAMP -> lane.start();
                case LATEST -> lane.head();
                case POSITIONS -> start.position(lane.streamlet(), lane.lane(), lane.start());
            });
            ends.put(id, lane.head());
        }
        return new Bounds(starts, ends);
    }

    private void seen(Found found, Throwable error) {
        if (error == null) {
            take(found);
        } else {
            LOG.warn("whether lanes have grown is not known: {}", error.getMessage());
        }
    }

    private void take(Found found) {
        for (LanePlan plan : found.fresh()) {
            // Two looks may have found it.
            if (plans.putIfAbsent(plan.stream(), plan) == null) {
                known.add(plan.stream());
            }
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
        return new EnumeratorState(plans.values().stream().map(plan -> plan.snapshot(checkpoint)).toList());
    }

    @Override
    public void notifyCheckpointComplete(long checkpoint) {
        plans.values().forEach(plan -> plan.completed(checkpoint).forEach(this::tell));
        assign();
    }

    @Override
    public void close() {
        admin.close();
    }
}
