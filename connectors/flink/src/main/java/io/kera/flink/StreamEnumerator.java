package io.kera.flink;

import io.kera.client.Admin;
import io.kera.client.Generations;
import io.kera.client.LanePosition;
import io.kera.client.LoginException;
import io.kera.client.PinKeeper;
import io.kera.flink.StreamLook.Fresh;
import io.kera.flink.StreamLook.Found;
import java.io.IOException;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.connector.source.SourceEvent;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.util.FlinkRuntimeException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Looks at streams, and has a plan for each, of type {@code P}. It joins no consumer group and holds no lease. */
abstract class StreamEnumerator<P> implements SplitEnumerator<LaneSplit, EnumeratorState> {
    private static final Logger LOG = LoggerFactory.getLogger(StreamEnumerator.class);
    /** As Flink's metrics have it. */
    private static final String JOB_NAME = "<job_name>";
    final SplitEnumeratorContext<LaneSplit> context;
    final SourceSettings settings;
    final StreamLook look;
    final Map<String, P> plans = new LinkedHashMap<>();
    final StreamIds ids = new StreamIds();
    final TakenPositions taken = new TakenPositions();
    /** Null: nothing is pinned. */
    private final PinKeeper pins;

    StreamEnumerator(SplitEnumeratorContext<LaneSplit> context, SourceSettings settings) throws IOException {
        this.context = context;
        this.settings = settings;
        look = new StreamLook(settings);
        pins = settings.pinning() == null ? null : keeper(settings, jobName(context));
    }

    private static String jobName(SplitEnumeratorContext<?> context) {
        MetricGroup metrics = context.metricGroup();
        return metrics == null ? "" : metrics.getAllVariables().getOrDefault(JOB_NAME, "");
    }

    private PinKeeper keeper(SourceSettings of, String job) {
        PinKeeper.Needs needs = of.bounded() ? PinKeeper.Needs.NAMED_LANES : PinKeeper.Needs.ALL_LANES;
        return new PinKeeper(() -> new Admin(of.bootstrap(), of.connection().options()), of.pinning(), needs, job, "the last checkpoint",
                this::notPinned);
    }

    private void notPinned(String why, boolean isNews) {
        if (isNews) {
            LOG.warn(why);
        } else {
            LOG.debug(why);
        }
        if (settings.pinning().isRequired()) {
            context.callAsync(() -> why, (text, error) -> {
                throw new FlinkRuntimeException(why);
            });
        }
    }

    final boolean isPinning() {
        return pins != null;
    }

    /**
     * A checkpoint is complete: the stream's pin moves to what it needs.
     *
     * @param isDone whether by the checkpoint everything is read
     */
    final void pin(String stream, List<LanePosition> positions, boolean isDone) {
        if (isDone && settings.pinning().isDeletedAtEnd()) {
            pins.delete(stream);
        } else if (!positions.isEmpty()) {
            pins.move(stream, HexFormat.of().parseHex(ids.all().getOrDefault(stream, "")), positions);
        }
    }

    @Override
    public void handleSourceEvent(int subtask, SourceEvent event) {
        if (isPinning() && event instanceof PositionsTaken positions) {
            taken.taken(subtask, positions);
        }
    }

    @Override
    public void notifyCheckpointAborted(long checkpoint) {
        taken.aborted(checkpoint);
    }

    /** A plan for a stream that was not known. */
    abstract P begin(Fresh stream);

    /** The lanes of a stream, as they have grown. */
    abstract void grown(P plan, Generations generations);

    /** Plans have changed: there may be splits to give to readers. */
    abstract void planned();

    /** A plan that a checkpoint has. Call it before {@link #start}. */
    final void restored(String stream, P plan) {
        plans.put(stream, plan);
        look.knows(stream);
    }

    /** The ids of streams as a checkpoint has them. Call it before {@link #start}. */
    final void restored(Map<String, String> known) {
        ids.all().putAll(known);
    }

    @Override
    public void start() {
        if (!look.isBegun()) {
            // At once: every checkpoint has the positions at which the job begins.
            try {
                take(look.look());
                look.begun();
            } catch (IOException error) {
                throw unseen(error);
            }
        } else {
            // Positions of a stream that is gone are those of no other stream.
            context.callAsync(look::ids, this::identified);
        }
        if (settings.bounded()) {
            context.callAsync(look::ids, this::identified, settings.discoveryMillis(), settings.discoveryMillis());
        } else {
            context.callAsync(look::look, this::seen, settings.discoveryMillis(), settings.discoveryMillis());
        }
    }

    private static FlinkRuntimeException unseen(Throwable error) {
        return new FlinkRuntimeException("the streams cannot be looked up: " + error.getMessage(), error);
    }

    private void identified(Map<String, byte[]> now, Throwable error) {
        if (error == null) {
            now.forEach(ids::check);
        } else {
            seen(null, error);
        }
    }

    private void seen(Found found, Throwable error) {
        if (error == null) {
            take(found);
        } else if (error instanceof LoginException) {
            throw unseen(error);
        } else {
            LOG.warn("whether lanes have grown is not known: {}", error.getMessage());
        }
    }

    private void take(Found found) {
        for (Fresh fresh : found.fresh()) {
            String stream = fresh.info().name();
            ids.check(stream, fresh.info().id());
            // Two looks may have found it.
            plans.computeIfAbsent(stream, any -> begin(fresh));
            look.knows(stream);
        }
        found.grown().forEach((stream, generations) -> {
            ids.check(stream, generations.stream());
            grown(plans.get(stream), generations);
        });
        planned();
    }

    @Override
    public void close() {
        if (pins != null) {
            pins.close();
        }
        look.close();
    }
}
