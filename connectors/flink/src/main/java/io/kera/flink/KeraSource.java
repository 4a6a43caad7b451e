package io.kera.flink;

import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.java.typeutils.ResultTypeQueryable;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.util.FlinkRuntimeException;
import org.apache.flink.util.UserCodeClassLoader;

/**
 * Reads streams: each lane in order, each record once with Flink's checkpoints. It joins no consumer group; positions
 * are in checkpoints.
 */
public final class KeraSource<T> implements Source<T, LaneSplit, EnumeratorState>, ResultTypeQueryable<T> {
    /** In the configuration of a TaskManager: its rack, for sources that name none. */
    static final ConfigOption<String> RACK = ConfigOptions.key("kera.rack").stringType().defaultValue("");
    private static final long serialVersionUID = 1L;
    private final SourceSettings settings;
    private final KeraDeserializer<T> deserializer;

    KeraSource(SourceSettings settings, KeraDeserializer<T> deserializer) {
        this.settings = settings;
        this.deserializer = deserializer;
    }

    /** A source to be. */
    public static <T> KeraSourceBuilder<T> builder() {
        return new KeraSourceBuilder<>();
    }

    @Override
    public Boundedness getBoundedness() {
        return settings.bounded() ? Boundedness.BOUNDED : Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SplitEnumerator<LaneSplit, EnumeratorState> createEnumerator(SplitEnumeratorContext<LaneSplit> context)
            throws Exception {
        return enumerator(context, null);
    }

    @Override
    public SplitEnumerator<LaneSplit, EnumeratorState> restoreEnumerator(
            SplitEnumeratorContext<LaneSplit> context, EnumeratorState state) throws Exception {
        boolean ranges = settings.order() == Order.NONE;
        boolean byKey = settings.order() == Order.KEY;
        boolean isOther = state.plans().stream().anyMatch(plan -> (plan.shares() != LanePlan.UNSHARED) != byKey);
        if (ranges ? !state.plans().isEmpty() : isOther || !state.ranges().isEmpty()) {
            throw new FlinkRuntimeException(
                    "the checkpoint is of a source with another order; start from it with the order that it had");
        }
        return enumerator(context, state);
    }

    private SplitEnumerator<LaneSplit, EnumeratorState> enumerator(
            SplitEnumeratorContext<LaneSplit> context, EnumeratorState state) throws java.io.IOException {
        return settings.order() == Order.NONE
                ? new RangeEnumerator(context, settings, state)
                : new KeraEnumerator(context, settings, state);
    }

    @Override
    public SimpleVersionedSerializer<LaneSplit> getSplitSerializer() {
        return new LaneSplitSerializer();
    }

    @Override
    public SimpleVersionedSerializer<EnumeratorState> getEnumeratorCheckpointSerializer() {
        return new EnumeratorStateSerializer();
    }

    @Override
    public SourceReader<T, LaneSplit> createReader(SourceReaderContext context) throws Exception {
        deserializer.open(new DeserializationSchema.InitializationContext() {
            @Override
            public MetricGroup getMetricGroup() {
                return context.metricGroup().addGroup("deserializer");
            }

            @Override
            public UserCodeClassLoader getUserCodeClassLoader() {
                return context.getUserCodeClassLoader();
            }
        });
        StreamIds ids = new StreamIds();
        ReadMetrics metrics = new ReadMetrics(context.metricGroup());
        String rack = settings.rack() == null ? context.getConfiguration().get(RACK) : settings.rack();
        return new KeraSourceReader<>(
                () -> {
                    try {
                        return new KeraSplitReader(settings, rack, ids, metrics);
                    } catch (java.io.IOException error) {
                        throw new FlinkRuntimeException("the source cannot read: " + error.getMessage(), error);
                    }
                },
                deserializer,
                context,
                new PositionCommitter(settings),
                ids,
                settings.order(),
                settings.pinning() != null,
                metrics);
    }

    @Override
    public TypeInformation<T> getProducedType() {
        return deserializer.getProducedType();
    }
}
