package io.kera.samza;

import io.kera.client.Admin;
import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.KeraRecord;
import io.kera.client.LaneReader;
import io.kera.client.Producer;
import io.kera.client.StreamInfo;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.samza.SamzaException;
import org.apache.samza.checkpoint.Checkpoint;
import org.apache.samza.checkpoint.CheckpointManager;
import org.apache.samza.checkpoint.CheckpointV1;
import org.apache.samza.checkpoint.CheckpointV2;
import org.apache.samza.config.Config;
import org.apache.samza.config.JobConfig;
import org.apache.samza.config.TaskConfig;
import org.apache.samza.container.TaskName;
import org.apache.samza.serializers.CheckpointV1Serde;
import org.apache.samza.serializers.CheckpointV2Serde;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Checkpoints in the one lane of a compacted stream, of which the newest of each task counts. A record's key is
 * {@code VERSION GROUPER TASK}, its value what Samza makes of a checkpoint of that version.
 */
final class KeraCheckpointManager implements CheckpointManager {
    private static final Logger LOG = LoggerFactory.getLogger(KeraCheckpointManager.class);
    private static final int READ_BYTES = 1 << 20;
    private static final int WAIT_MILLIS = 500;

    private final SystemSettings settings;
    private final String stream;
    private final String grouper;
    private final boolean strict;
    private final List<Short> versions;
    private final long staleMillis;
    private final CheckpointV1Serde first = new CheckpointV1Serde();
    private final CheckpointV2Serde second = new CheckpointV2Serde();
    private final Set<TaskName> tasks = new HashSet<>();
    private final Map<TaskName, Map<Short, Stored>> newest = new HashMap<>();
    private final Object writing = new Object();
    private Admin admin;
    private Producer producer;
    /** Up to where the lane was read; less than 0: not at all. */
    private long read = -1;
    /** Why a checkpoint was not written: what later ones would say nobody can rely on. */
    private IOException failure;

    /** @param time when it was written, milliseconds since 1970 */
    private record Stored(Checkpoint checkpoint, long time) {}

    KeraCheckpointManager(SystemSettings settings, String stream, Config config) {
        this.settings = settings;
        this.stream = stream;
        JobConfig job = new JobConfig(config);
        TaskConfig task = new TaskConfig(config);
        grouper = job.getSystemStreamPartitionGrouperFactory();
        strict = job.failOnCheckpointValidation();
        versions = task.getCheckpointReadVersions();
        staleMillis = task.getLiveCheckpointMaxAgeMillis();
    }

    private String named() {
        return "stream " + stream + " of system " + settings.system() + ", which has the checkpoints of " + settings.job() + ",";
    }

    @Override
    public void createResources() {
        try (Admin own = settings.admin()) {
            own.createCompactedStream(stream, 1, 1);
        } catch (IOException error) {
            if (!(error instanceof KeraException answer && answer.code() == ErrorCodes.STREAM_EXISTS)) {
                throw new SamzaException(named() + " cannot be created: " + error.getMessage(), error);
            }
        }
    }

    @Override
    public void start() {
        try {
            admin = settings.admin();
        } catch (IOException error) {
            throw new SamzaException("system " + settings.system() + " cannot be reached: " + error.getMessage(), error);
        }
        StreamInfo info = look();
        if (info.partitions() != 1) {
            throw new SamzaException(named() + " has " + info.partitions() + " lanes, and must have one: delete it, or move it away");
        }
    }

    private StreamInfo look() {
        return Retries.ask(named() + " cannot be looked up", () -> admin.stream(stream));
    }

    @Override
    public void register(TaskName task) {
        tasks.add(task);
    }

    @Override
    public void writeCheckpoint(TaskName task, Checkpoint checkpoint) {
        byte[] key = (checkpoint.getVersion() + " " + grouper + " " + task.getTaskName()).getBytes(StandardCharsets.UTF_8);
        byte[] value = encoded(checkpoint);
        try {
            Producer to = producer();
            to.append(key, value);
            // One by one: a producer tells one caller alone of what was given up before.
            synchronized (writing) {
                if (failure == null) {
                    to.flush();
                    return;
                }
            }
        } catch (IOException error) {
            synchronized (writing) {
                failure = failure == null ? error : failure;
            }
        }
        throw new SamzaException("the checkpoint of " + task + " was not written, to " + named() + " " + failure.getMessage(), failure);
    }

    private Producer producer() throws IOException {
        synchronized (writing) {
            if (producer == null) {
                producer = new Producer(stream, settings.producerOptions(settings.connect()));
            }
            return producer;
        }
    }

    private byte[] encoded(Checkpoint checkpoint) {
        if (checkpoint instanceof CheckpointV1 of) {
            return first.toBytes(of);
        }
        if (checkpoint instanceof CheckpointV2 of) {
            return second.toBytes(of);
        }
        throw new SamzaException("a checkpoint of version " + checkpoint.getVersion() + " is not known");
    }

    @Override
    public Checkpoint readLastCheckpoint(TaskName task) {
        if (!tasks.contains(task)) {
            throw new SamzaException(task + " is not registered with the checkpoints in stream " + stream);
        }
        Retries.ask(named() + " cannot be read", () -> {
            readOn();
            return read;
        });
        Stored found = null;
        Map<Short, Stored> stored = newest.getOrDefault(task, Map.of());
        for (short version : versions) {
            Stored next = stored.get(version);
            // One that a job has written long before another one is of a time when it wrote that version alone.
            if (next != null && (found == null || next.time() - found.time() > staleMillis)) {
                found = next;
            }
        }
        return found == null ? null : found.checkpoint();
    }

    /** What was written since the last time. */
    private void readOn() throws IOException {
        Admin.LaneBounds lane = admin.bounds(stream, 0, 0);
        read = Math.max(read, lane.start());
        try (LaneReader reader = new LaneReader(admin.stream(stream), 0, 0, read, lane.head(), settings.connect())) {
            while (!reader.finished()) {
                reader.read(READ_BYTES, WAIT_MILLIS).forEach(this::keep);
                read = reader.position();
            }
        }
    }

    private void keep(KeraRecord record) {
        if (record.key() == null || record.value() == null) {
            return;
        }
        String key = new String(record.key(), StandardCharsets.UTF_8);
        String[] words = key.split(" ", 3);
        if (words.length < 3 || !words[0].matches("[0-9]{1,4}")) {
            refuse("record " + record.ordinal() + " of " + named() + " is no checkpoint: its key is \"" + key + "\"", null);
            return;
        }
        short version = Short.parseShort(words[0]);
        if (!versions.contains(version)) {
            return;
        }
        if (!words[1].equals(grouper)) {
            refuse("the checkpoint of task " + words[2] + " in " + named() + " is of the grouper " + words[1] + ", and the job has "
                    + grouper + ": its tasks are others", null);
        }
        Checkpoint checkpoint = null;
        SamzaException why = null;
        try {
            checkpoint = version == 1 ? first.fromBytes(record.value()) : version == 2 ? second.fromBytes(record.value()) : null;
        } catch (SamzaException error) {
            why = error;
        }
        if (checkpoint == null) {
            refuse("the checkpoint of task " + words[2] + " in record " + record.ordinal() + " of " + named() + " cannot be read", why);
            return;
        }
        newest.computeIfAbsent(new TaskName(words[2]), any -> new HashMap<>()).put(version, new Stored(checkpoint, record.timestamp()));
    }

    /** Fails, or has the log tell, as {@code job.checkpoint.validation.enabled} says. */
    private void refuse(String what, SamzaException why) {
        if (strict) {
            throw new SamzaException(what, why);
        }
        LOG.warn(what, why);
    }

    @Override
    public void clearCheckpoints() {
        try (Admin own = settings.admin()) {
            own.deleteStream(stream);
        } catch (IOException error) {
            if (!(error instanceof KeraException answer && answer.code() == ErrorCodes.UNKNOWN_STREAM)) {
                throw new SamzaException(named() + " cannot be deleted: " + error.getMessage(), error);
            }
        }
    }

    @Override
    public void stop() {
        synchronized (writing) {
            try {
                if (producer != null) {
                    producer.close();
                }
            } catch (IOException error) {
                LOG.error("at the stop of {} {}", named(), error.getMessage(), error);
            }
        }
        if (admin != null) {
            admin.close();
        }
    }
}
