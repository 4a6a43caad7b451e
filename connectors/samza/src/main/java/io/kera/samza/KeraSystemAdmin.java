package io.kera.samza;

import io.kera.client.Admin;
import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.LaneReader;
import io.kera.client.OwnerConnections;
import io.kera.client.StreamInfo;
import java.io.IOException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.ToLongFunction;
import java.util.stream.Collectors;
import org.apache.samza.Partition;
import org.apache.samza.SamzaException;
import org.apache.samza.startpoint.Startpoint;
import org.apache.samza.startpoint.StartpointOldest;
import org.apache.samza.startpoint.StartpointSpecific;
import org.apache.samza.startpoint.StartpointTimestamp;
import org.apache.samza.startpoint.StartpointUpcoming;
import org.apache.samza.startpoint.StartpointVisitor;
import org.apache.samza.system.StreamSpec;
import org.apache.samza.system.StreamValidationException;
import org.apache.samza.system.SystemAdmin;
import org.apache.samza.system.SystemStream;
import org.apache.samza.system.SystemStreamMetadata;
import org.apache.samza.system.SystemStreamMetadata.SystemStreamPartitionMetadata;
import org.apache.samza.system.SystemStreamPartition;

/** Where the lanes of streams begin and end, and which streams there are. Partition p is lane p / M of streamlet p % M. */
final class KeraSystemAdmin implements SystemAdmin {
    private final SystemSettings settings;
    private final StartpointVisitor<SystemStreamPartition, String> startpoints = new Startpoints();
    private Admin admin;
    private boolean stopped;

    KeraSystemAdmin(SystemSettings settings) {
        this.settings = settings;
    }

    /** The lanes of a stream, each at its index as a partition. */
    private record Lanes(StreamInfo stream, Admin.LaneBounds[] bounds) {
        String offset(long ordinal) {
            return new Position(ordinal, hex(stream.id()), stream.partitions()).toString();
        }
    }

    static String hex(byte[] id) {
        return HexFormat.of().formatHex(id);
    }

    /** Samza asks before it starts an admin, and after it. */
    private synchronized Admin admin() throws IOException {
        if (stopped) {
            throw new IllegalStateException("the admin of system " + settings.system() + " was stopped");
        }
        if (admin == null) {
            admin = settings.admin();
        }
        return admin;
    }

    @Override
    public synchronized void stop() {
        stopped = true;
        if (admin != null) {
            admin.close();
        }
    }

    @Override
    public synchronized boolean isStopped() {
        return stopped;
    }

    @Override
    public Map<SystemStreamPartition, String> getOffsetsAfter(Map<SystemStreamPartition, String> offsets) {
        Map<SystemStreamPartition, String> after = new HashMap<>();
        offsets.forEach((partition, offset) -> after.put(partition, Position.of(offset).next().toString()));
        return after;
    }

    @Override
    public Map<String, SystemStreamMetadata> getSystemStreamMetadata(Set<String> streamNames) {
        KeraSystemProducer.acknowledge(settings, streamNames);
        Map<String, SystemStreamMetadata> streams = new HashMap<>();
        for (String name : streamNames) {
            Lanes lanes = lanes(name, null);
            Map<Partition, SystemStreamPartitionMetadata> partitions = new HashMap<>();
            for (int n = 0; n < lanes.bounds().length; n++) {
                Admin.LaneBounds lane = lanes.bounds()[n];
                // Of an empty lane Samza takes no newest offset, and begins to restore state at the oldest all the same.
                boolean empty = lane.start() >= lane.head();
                partitions.put(new Partition(n), new SystemStreamPartitionMetadata(
                        lanes.offset(lane.start()), empty ? null : lanes.offset(lane.head() - 1), lanes.offset(lane.head())));
            }
            streams.put(name, new SystemStreamMetadata(name, partitions));
        }
        return streams;
    }

    @Override
    public Map<String, SystemStreamMetadata> getSystemStreamPartitionCounts(Set<String> streamNames, long cacheTTL) {
        Map<String, SystemStreamMetadata> streams = new HashMap<>();
        for (String name : streamNames) {
            int lanes = ask(name, () -> admin().stream(name)).partitions();
            Map<Partition, SystemStreamPartitionMetadata> partitions = new HashMap<>();
            for (int n = 0; n < lanes; n++) {
                partitions.put(new Partition(n), new SystemStreamPartitionMetadata(null, null, null));
            }
            streams.put(name, new SystemStreamMetadata(name, partitions));
        }
        return streams;
    }

    private <T> T ask(String stream, Retries.Question<T> question) {
        return Retries.ask("stream " + stream + " of system " + settings.system() + " cannot be looked up", question);
    }

    /** @param from the time at which lanes begin; null: at the first record that is stored */
    private Lanes lanes(String name, Long from) {
        return ask(name, () -> {
            StreamInfo before = admin().stream(name);
            List<Admin.LaneBounds> found = from == null ? admin().bounds(name) : admin().boundsFrom(name, from);
            StreamInfo stream = admin().stream(name);
            if (!Arrays.equals(before.id(), stream.id()) || before.partitions() != stream.partitions()) {
                throw new IOException("it was made again or grew meanwhile");
            }
            Admin.LaneBounds[] bounds = new Admin.LaneBounds[stream.partitions()];
            int missing = bounds.length;
            for (Admin.LaneBounds lane : found) {
                int partition = lane.lane() * stream.streamlets().size() + lane.streamlet();
                bounds[partition] = lane;
                missing--;
            }
            if (missing > 0) {
                throw new IOException("the owners of " + missing + " of its lanes are away");
            }
            return new Lanes(stream, bounds);
        });
    }

    /** No offset comes before any other, as Samza asks of a stream of state that is empty. */
    @Override
    public Integer offsetComparator(String offset1, String offset2) {
        if (offset1 == null || offset2 == null) {
            return -1;
        }
        Position first = Position.of(offset1);
        Position second = Position.of(offset2);
        if (first.stream() != null && second.stream() != null && !first.stream().equals(second.stream())) {
            return null;
        }
        return Long.compare(first.ordinal(), second.ordinal());
    }

    @Override
    public boolean createStream(StreamSpec spec) {
        String name = spec.getPhysicalName();
        try {
            if (spec.isChangeLogStream()) {
                admin().createCompactedStream(name, spec.getPartitionCount(), 1, settings.compactionLag(name));
            } else if (spec.isCheckpointStream() || spec.isCoordinatorStream()) {
                admin().createCompactedStream(name, spec.getPartitionCount(), 1);
            } else {
                admin().createStream(name, spec.getPartitionCount(), 1);
            }
            return true;
        } catch (IOException error) {
            if (error instanceof KeraException answer && answer.code() == ErrorCodes.STREAM_EXISTS) {
                return false;
            }
            throw new SamzaException("stream " + name + " of system " + settings.system() + " cannot be created: "
                    + error.getMessage(), error);
        }
    }

    @Override
    public void validateStream(StreamSpec spec) throws StreamValidationException {
        String name = spec.getPhysicalName();
        int lanes = ask(name, () -> admin().stream(name)).partitions();
        if (lanes != spec.getPartitionCount()) {
            String needs = " lanes in all, and " + settings.job() + " needs " + spec.getPartitionCount();
            throw new StreamValidationException("stream " + name + " of system " + settings.system() + " has " + lanes + needs
                    + (spec.isChangeLogStream() ? ": it keeps the state of " + lanes + " tasks, and a task is a lane of what is read. If"
                            + " that has grown, start the job under another job.name or job.id and with another stream for its"
                            + " state, from the oldest records, so that it builds its state anew" : ""));
        }
    }

    @Override
    public boolean clearStream(StreamSpec spec) {
        String name = spec.getPhysicalName();
        try {
            admin().deleteStream(name);
            return true;
        } catch (IOException error) {
            if (error instanceof KeraException answer && answer.code() == ErrorCodes.UNKNOWN_STREAM) {
                return true;
            }
            throw new SamzaException("stream " + name + " of system " + settings.system() + " cannot be deleted: "
                    + error.getMessage(), error);
        }
    }

    @Override
    public Set<SystemStream> getAllSystemStreams() {
        return Retries.ask("the streams of system " + settings.system() + " cannot be listed", () -> admin().streams()).stream()
                .map(stream -> new SystemStream(settings.system(), stream.name())).collect(Collectors.toSet());
    }

    @Override
    public String resolveStartpointToOffset(SystemStreamPartition partition, Startpoint startpoint) {
        return startpoint.apply(partition, startpoints);
    }

    private final class Startpoints implements StartpointVisitor<SystemStreamPartition, String> {
        private String at(SystemStreamPartition partition, ToLongFunction<Admin.LaneBounds> place) {
            Lanes lanes = lanes(partition.getStream(), null);
            return lanes.offset(place.applyAsLong(lane(lanes, partition)));
        }

        private static Admin.LaneBounds lane(Lanes lanes, SystemStreamPartition partition) {
            int number = partition.getPartition().getPartitionId();
            if (number >= lanes.bounds().length) {
                throw new SamzaException(partition + " is none: the stream has " + lanes.bounds().length + " lanes in all");
            }
            return lanes.bounds()[number];
        }

        @Override
        public String visit(SystemStreamPartition partition, StartpointOldest startpoint) {
            return at(partition, Admin.LaneBounds::start);
        }

        @Override
        public String visit(SystemStreamPartition partition, StartpointUpcoming startpoint) {
            return at(partition, Admin.LaneBounds::head);
        }

        @Override
        public String visit(SystemStreamPartition partition, StartpointSpecific startpoint) {
            return Position.of(startpoint.getSpecificOffset()).toString();
        }

        @Override
        public String visit(SystemStreamPartition partition, StartpointTimestamp startpoint) {
            long timestamp = startpoint.getTimestampOffset();
            return ask(partition.getStream(), () -> {
                Lanes lanes = lanes(partition.getStream(), timestamp);
                try (OwnerConnections owners = new OwnerConnections(settings.connect())) {
                    return lanes.offset(LaneReader.firstFrom(lanes.stream(), lane(lanes, partition), timestamp, owners));
                }
            });
        }
    }
}
