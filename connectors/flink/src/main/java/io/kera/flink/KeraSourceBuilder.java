package io.kera.flink;

import io.kera.client.Pinning;
import io.kera.client.Slices;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.regex.Pattern;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.ExecutionOptions;
import org.apache.flink.configuration.ReadableConfig;

/** Settings of a {@link KeraSource}. */
public final class KeraSourceBuilder<T> extends KeraConnectionBuilder<KeraSourceBuilder<T>> {
    private List<String> streams = List.of();
    private String pattern;
    private Order order = Order.LANE;
    private Start start = Start.earliest();
    private boolean bounded;
    private Growth growth = Growth.ORDERED;
    private Duration discovery = Duration.ofSeconds(10);
    private boolean onDataLossFail = true;
    private String group;
    private String rack;
    private int keyShares;
    private Pinning pinning;
    private KeraDeserializer<T> deserializer;

    KeraSourceBuilder() {}

    @Override
    KeraSourceBuilder<T> self() {
        return this;
    }

    /** The streams to read. These or a pattern are required. */
    public KeraSourceBuilder<T> streams(String... names) {
        streams = List.of(names);
        return this;
    }

    /** Reads all streams whose names match, those that are made while the job runs as well. */
    public KeraSourceBuilder<T> pattern(Pattern names) {
        pattern = names.pattern();
        return this;
    }

    /** Where a job begins that is not restored. Default: at the first record that is stored. */
    public KeraSourceBuilder<T> start(Start at) {
        start = Objects.requireNonNull(at);
        return this;
    }

    /** Ends behind the last record that is stored when the job begins. Default: it goes on for ever. */
    public KeraSourceBuilder<T> bounded() {
        bounded = true;
        return this;
    }

    /** What order is kept. Default {@link Order#LANE}. */
    public KeraSourceBuilder<T> order(Order wanted) {
        order = Objects.requireNonNull(wanted);
        return this;
    }

    /** What happens where lanes grow. Default {@link Growth#ORDERED}. */
    public KeraSourceBuilder<T> growth(Growth wanted) {
        growth = Objects.requireNonNull(wanted);
        return this;
    }

    /** How often the source looks whether lanes have grown. Default 10 s. */
    public KeraSourceBuilder<T> discovery(Duration interval) {
        discovery = interval;
        return this;
    }

    /** Goes on at the earliest record if the next one was deleted. Default: the job fails. */
    public KeraSourceBuilder<T> skipDeleted() {
        onDataLossFail = false;
        return this;
    }

    /** Shows the job's positions as those of a consumer group without members. For one stream only. Default: none. */
    public KeraSourceBuilder<T> group(String name) {
        group = name;
        return this;
    }

    /**
     * The rack or zone that the job runs in, as brokers name theirs ({@code cluster.rack}): what lies in closed groups is read
     * from a replica in it, unless the owner is in it too. Default: each TaskManager's, which {@code kera.rack} in its
     * configuration names; none if it does not.
     */
    public KeraSourceBuilder<T> rack(String name) {
        rack = Objects.requireNonNull(name);
        return this;
    }

    /**
     * By how many readers the keys of each lane are shared, with {@link Order#KEY}: 1 to 64. A job keeps it for life, so choose what its
     * parallelism may ever be over the number of lanes; each share reads the whole lane. Default: as many as give each reader one when the job
     * begins.
     */
    public KeraSourceBuilder<T> keyShares(int shares) {
        keyShares = shares;
        return this;
    }

    /**
     * Pins what a completed checkpoint needs in each stream, so that brokers do not delete it meanwhile, or tell of it. The job needs
     * checkpoints. Default: nothing is pinned.
     */
    public KeraSourceBuilder<T> pin(Pinning wanted) {
        pinning = Objects.requireNonNull(wanted);
        return this;
    }

    /** What records become. Required. */
    public KeraSourceBuilder<T> deserializer(KeraDeserializer<T> wanted) {
        deserializer = wanted;
        return this;
    }

    /**
     * The source.
     *
     * @param job the configuration of the job, {@code env.getConfiguration()}: whether order can be kept depends on its
     *     checkpoints. Without aligned checkpoints a job fails at a growth, unless {@link Growth#UNORDERED} is chosen.
     * @throws IllegalArgumentException if a setting is missing, or two do not fit
     */
    public KeraSource<T> build(ReadableConfig job) {
        return new KeraSource<>(settings(job), deserializer);
    }

    SourceSettings settings(ReadableConfig job) {
        check(streams.isEmpty() != (pattern == null), "name the streams to read, or give a pattern for their names");
        check(deserializer != null, "say by a deserializer what records become");
        check(group == null || streams.size() == 1, "a group shows the positions of one stream, which is to be named");
        check(group == null || order == Order.LANE, "a group shows positions in lanes, which a source has with order lane alone");
        check(keyShares == 0 || order == Order.KEY, "shares of a lane's keys are for order key");
        check(keyShares >= 0 && keyShares <= Slices.COUNT, "a lane has " + keyShares + " shares of its keys: use 1 to " + Slices.COUNT);
        check(discovery.toMillis() > 0, "discovery is " + discovery + ": use 1 ms or more");
        String noOrder = growth == Growth.ORDERED ? noOrder(job) : "growth is refused by the job's settings";
        Growth settled = growth == Growth.ORDERED && noOrder != null ? Growth.REFUSED : growth;
        if (job.get(ExecutionOptions.RUNTIME_MODE) == RuntimeExecutionMode.BATCH && growth == Growth.ORDERED) {
            // Operators get their input by key, and nothing by time.
            settled = Growth.UNORDERED;
        }
        return new SourceSettings(
                bootstrap, streams, pattern, order, start, bounded, settled, noOrder, discovery.toMillis(), onDataLossFail, group, connection(),
                keyShares, rack, pinning);
    }

    /** Why a job cannot keep the order of keys where lanes grow; null if it can. */
    static String noOrder(ReadableConfig job) {
        if (job.getOptional(CheckpointingOptions.CHECKPOINTING_INTERVAL).isEmpty()) {
            return "the order of its keys is kept by checkpoints, which the job has none of";
        }
        if (job.get(CheckpointingOptions.ENABLE_UNALIGNED)) {
            return "the order of its keys is kept by aligned checkpoints, and the job's are unaligned";
        }
        return null;
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalArgumentException(otherwise);
        }
    }
}
