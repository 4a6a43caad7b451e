package io.kera.samza;

import io.kera.client.Admin;
import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.KeraRecord;
import io.kera.client.LaneReader;
import io.kera.client.OwnerConnections;
import io.kera.client.Partitions;
import io.kera.client.SilentBrokerException;
import io.kera.client.StreamInfo;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.samza.SamzaException;
import org.apache.samza.checkpoint.CheckpointListener;
import org.apache.samza.metrics.Counter;
import org.apache.samza.metrics.MetricsRegistry;
import org.apache.samza.system.IncomingMessageEnvelope;
import org.apache.samza.system.SystemStreamPartition;
import org.apache.samza.util.BlockingEnvelopeMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Reads lanes in turn, on one thread, each from its owner, or from a replica in the rack of the process. */
final class KeraSystemConsumer extends BlockingEnvelopeMap implements CheckpointListener {
    private static final Logger LOG = LoggerFactory.getLogger(KeraSystemConsumer.class);
    private static final int READ_BYTES = 1 << 20;
    /** While no lane has anything, one of them is waited for, so long. */
    private static final int WAIT_MILLIS = 20;
    /** A broker that does not answer holds up the lanes of others for so long, once. */
    private static final Duration PATIENCE = Duration.ofMillis(200);
    private static final long PAUSE_NANOS = Duration.ofMillis(Retries.PAUSE_MILLIS).toNanos();
    /** Of a record in memory, beside its key and value. */
    private static final int RECORD_BYTES = 64;
    /** What the metric is called that counts bytes of batches from replicas in the rack. */
    static final String REPLICA_BYTES = "replica-bytes-read";
    private static final int END_MILLIS = 30_000;

    private final SystemSettings settings;
    private final Map<SystemStreamPartition, Position> registered = new HashMap<>();
    private final ArrayDeque<Lane> lanes = new ArrayDeque<>();
    private final long readAhead;
    private final Counter replicaBytes;
    private final Map<String, StreamInfo> begun = new HashMap<>();
    /** Null before there is a checkpoint, and where nothing is pinned. */
    private volatile CheckpointPins pins;
    private StreamLook streams;
    private Admin admin;
    private OwnerConnections connections;
    private Thread thread;
    private volatile boolean stopped;
    private volatile Throwable failure;

    /** A lane that is read. */
    private static final class Lane {
        private final SystemStreamPartition partition;
        private final Retries retries;
        /** What follows the ordinal in an offset. */
        private final String suffix;
        private long next;
        private int streamlet;
        private LaneReader reader;
        private String owner = "";
        /** When it is tried again after an error. */
        private long notBefore = System.nanoTime();

        Lane(SystemStreamPartition partition, long next, String suffix) {
            this.partition = partition;
            this.next = next;
            this.suffix = suffix;
            retries = new Retries(partition + " cannot be read at " + next);
        }

        @Override
        public String toString() {
            return "partition " + partition.getPartition().getPartitionId() + " of stream " + partition.getStream();
        }
    }

    KeraSystemConsumer(SystemSettings settings, MetricsRegistry registry) {
        super(registry);
        this.settings = settings;
        readAhead = settings.readAhead();
        replicaBytes = registry.newCounter(KeraSystemConsumer.class.getName(), settings.system() + "-" + REPLICA_BYTES);
    }

    @Override
    public void register(SystemStreamPartition partition, String offset) {
        super.register(partition, offset);
        // Of a partition that several tasks read, at the least of their offsets.
        registered.merge(partition, Position.of(offset), (one, other) -> one.ordinal() <= other.ordinal() ? one : other);
    }

    /** @throws SamzaException if a stream is not the one that the job's offsets are of, or has grown under state */
    @Override
    public void start() {
        try {
            admin = settings.admin();
            connections = new OwnerConnections(settings.connect(), PATIENCE, settings.rack());
        } catch (IOException error) {
            throw new SamzaException("system " + settings.system() + " cannot be reached: " + error.getMessage(), error);
        }
        streams = new StreamLook(settings, admin);
        registered.forEach((partition, position) -> {
            StreamInfo stream = streams.begin(partition, position);
            begun.put(stream.name(), stream);
            lanes.add(new Lane(partition, position.ordinal(),
                    Position.suffix(KeraSystemAdmin.hex(stream.id()), stream.partitions())));
        });
        thread = new Thread(this::run, "kera-samza-" + settings.system());
        thread.setDaemon(true);
        thread.start();
    }

    /** Only consumers of a job's inputs hear of checkpoints, and not those that restore its state. */
    @Override
    public synchronized void afterCheckpoint(Map<SystemStreamPartition, String> offsets) {
        if (pins == null) {
            pins = settings.pinning().map(pinning -> new CheckpointPins(settings, pinning, begun, registered)).orElse(null);
        }
        if (pins != null) {
            pins.checkpoint(offsets);
        }
    }

    @Override
    public void stop() {
        stopped = true;
        if (pins != null) {
            pins.close();
        }
        if (thread == null) {
            return;
        }
        thread.interrupt();
        try {
            thread.join(END_MILLIS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public Map<SystemStreamPartition, List<IncomingMessageEnvelope>> poll(Set<SystemStreamPartition> partitions, long timeout)
            throws InterruptedException {
        Map<SystemStreamPartition, List<IncomingMessageEnvelope>> found = super.poll(partitions, timeout);
        String notPinned = pins == null ? null : pins.failure();
        if (notPinned != null) {
            throw new SamzaException(notPinned);
        }
        // What was read before is not given to a job that is about to end.
        if (failure != null) {
            throw new SamzaException(failure.getMessage(), failure);
        }
        return found;
    }

    private void run() {
        try {
            while (!stopped) {
                streams.look();
                step();
            }
        } catch (InterruptedException error) {
            // As the stop.
        } catch (RuntimeException error) {
            if (!stopped) {
                failure = error;
                setFailureCause(error);
                LOG.error("system {} is not read any more: {}", settings.system(), error.getMessage());
            }
        } finally {
            connections.close();
            admin.close();
        }
    }

    /** Reads each lane once; where there is nothing, one of them waits a little. */
    private void step() throws InterruptedException {
        boolean any = false;
        Lane waits = null;
        for (int n = lanes.size(); n > 0; n--) {
            // It goes to the end, so that each gets its turn to wait.
            Lane lane = lanes.remove();
            lanes.add(lane);
            if (lane.notBefore - System.nanoTime() <= 0 && getMessagesSizeInQueue(lane.partition) < readAhead) {
                boolean found = read(lane, 0);
                any |= found;
                waits = waits == null && !found ? lane : waits;
            }
        }
        if (any) {
            return;
        }
        if (waits != null && waits.notBefore - System.nanoTime() <= 0) {
            // At the end from now on: another one is the first to be read, and to wait, next time.
            lanes.remove(waits);
            lanes.add(waits);
            read(waits, WAIT_MILLIS);
        } else {
            Thread.sleep(WAIT_MILLIS);
        }
    }

    /** True if there was something. */
    private boolean read(Lane lane, int waitMillis) throws InterruptedException {
        try {
            open(lane);
            long near = lane.reader.replicaBytes();
            List<KeraRecord> records = lane.reader.read(READ_BYTES, waitMillis);
            replicaBytes.inc(lane.reader.replicaBytes() - near);
            for (KeraRecord record : records) {
                put(lane.partition, envelope(lane, record));
            }
            lane.next = lane.reader.position();
            lane.retries.answered();
            setIsAtHead(lane.partition, lane.reader.behind() == 0);
            return !records.isEmpty();
        } catch (SilentBrokerException error) {
            failed(lane, error);
        } catch (IOException error) {
            lane.reader = null;
            if (error instanceof KeraException answer && answer.code() == ErrorCodes.OUT_OF_RANGE) {
                outOfRange(lane, answer);
            } else {
                failed(lane, error);
            }
        }
        return false;
    }

    private static IncomingMessageEnvelope envelope(Lane lane, KeraRecord record) {
        int size = RECORD_BYTES + (record.key() == null ? 0 : record.key().length)
                + (record.value() == null ? 0 : record.value().length);
        return new IncomingMessageEnvelope(lane.partition, record.ordinal() + lane.suffix, record.key(), record.value(), size,
                record.timestamp(), System.currentTimeMillis());
    }

    /** Has the lane read from its owner, which may be another one than before. */
    private void open(Lane lane) throws IOException {
        StreamInfo stream = streams.info(lane.partition.getStream());
        int partition = lane.partition.getPartition().getPartitionId();
        int streamlets = stream.streamlets().size();
        lane.streamlet = Partitions.streamlet(partition, streamlets);
        String owner = stream.owner(lane.streamlet);
        if (lane.reader == null || !owner.equals(lane.owner)) {
            lane.reader = null;
            lane.owner = owner;
            lane.reader = new LaneReader(stream, lane.streamlet, Partitions.lane(partition, streamlets), lane.next,
                    LaneReader.UNBOUNDED, LaneReader.ALL_GENERATIONS, connections);
        }
    }

    private void failed(Lane lane, IOException error) {
        if (Thread.currentThread().isInterrupted()) {
            throw new SamzaException("interrupted", error);
        }
        streams.doubt(lane.partition.getStream());
        if (error instanceof KeraException answer && answer.code() == ErrorCodes.UNKNOWN_STREAM) {
            // Of an owner that is about to serve it, or of a stream that is no more: the next look says which.
            lane.retries.failed(new IOException(answer.getMessage(), answer));
        } else {
            lane.retries.failed(error);
        }
        lane.notBefore = System.nanoTime() + PAUSE_NANOS;
    }

    /** Records were deleted, or the lane is not recovered up to here yet. */
    private void outOfRange(Lane lane, KeraException error) {
        try {
            int partition = lane.partition.getPartition().getPartitionId();
            StreamInfo stream = streams.info(lane.partition.getStream());
            long start = admin.bounds(stream.name(), lane.streamlet,
                    Partitions.lane(partition, stream.streamlets().size())).start();
            if (start > lane.next) {
                String what = "records of " + lane + " of system " + settings.system() + " from " + lane.next + " to " + start
                        + " were deleted before " + settings.job() + " read them";
                if (settings.isLossFatal()) {
                    throw new SamzaException(what + "; set systems." + settings.system() + ".kera."
                            + SystemSettings.ON_DATA_LOSS + " to oldest to go on without them", error);
                }
                LOG.warn("{}; it goes on at {}", what, start);
                lane.next = start;
                return;
            }
            failed(lane, new IOException(error.getMessage(), error));
        } catch (IOException away) {
            failed(lane, away);
        }
    }
}
