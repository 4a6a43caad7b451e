package io.kera.samza;

import io.kera.client.LanePosition;
import io.kera.client.Partitions;
import io.kera.client.PinKeeper;
import io.kera.client.Pinning;
import io.kera.client.StreamInfo;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.samza.system.SystemStreamPartition;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The pins of what the tasks of a process have still to read, which checkpoints move. Thread-safe. */
final class CheckpointPins implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(CheckpointPins.class);

    private final Pinning pinning;
    private final PinKeeper keeper;
    private final Map<String, StreamInfo> streams;
    /** The next ordinal of each partition. */
    private final Map<SystemStreamPartition, Long> next = new HashMap<>();
    private volatile String failure;

    /**
     * Pins nothing yet.
     *
     * @param streams that the process reads
     * @param begun where it begins in each of its partitions
     */
    CheckpointPins(SystemSettings settings, Pinning pinning, Map<String, StreamInfo> streams, Map<SystemStreamPartition, Position> begun) {
        this.pinning = pinning;
        this.streams = streams;
        begun.forEach((partition, position) -> next.put(partition, position.ordinal()));
        // Lanes of other processes are in the pins of those.
        keeper = new PinKeeper(settings::admin, pinning, PinKeeper.Needs.NAMED_LANES, settings.job(), "the last checkpoint", this::failed);
    }

    private void failed(String why, boolean isNews) {
        failure = why;
        if (isNews) {
            LOG.warn(why);
        } else {
            LOG.debug(why);
        }
    }

    /** Why a pin is not where it should be, if the job asks to end then; otherwise null. */
    String failure() {
        return pinning.isRequired() ? failure : null;
    }

    /** A checkpoint of a task is written: everything up to and with these offsets is processed. */
    synchronized void checkpoint(Map<SystemStreamPartition, String> offsets) {
        Set<String> moved = new TreeSet<>();
        offsets.forEach((partition, offset) -> {
            if (offset != null && next.containsKey(partition)) {
                next.put(partition, Position.of(offset).next().ordinal());
                moved.add(partition.getStream());
            }
        });
        moved.forEach(this::move);
    }

    private void move(String name) {
        StreamInfo stream = streams.get(name);
        int streamlets = stream.streamlets().size();
        List<LanePosition> positions = new ArrayList<>();
        next.forEach((partition, ordinal) -> {
            if (partition.getStream().equals(name)) {
                int number = partition.getPartition().getPartitionId();
                positions.add(new LanePosition(Partitions.streamlet(number, streamlets), Partitions.lane(number, streamlets), ordinal));
            }
        });
        keeper.move(name, stream.id(), positions);
    }

    /** Waits a little for what is still to be done. */
    @Override
    public void close() {
        keeper.close();
    }
}
