package io.kera.samza;

import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.KeraRecord;
import io.kera.client.LaneReader;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.StreamInfo;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import org.apache.samza.application.TaskApplication;
import org.apache.samza.checkpoint.Checkpoint;
import org.apache.samza.checkpoint.CheckpointManager;
import org.apache.samza.config.MapConfig;
import org.apache.samza.container.TaskName;
import org.apache.samza.context.Context;
import org.apache.samza.metrics.MetricsRegistryMap;
import org.apache.samza.operators.KV;
import org.apache.samza.runtime.LocalApplicationRunner;
import org.apache.samza.serializers.KVSerde;
import org.apache.samza.serializers.StringSerde;
import org.apache.samza.storage.kv.KeyValueStore;
import org.apache.samza.system.IncomingMessageEnvelope;
import org.apache.samza.system.OutgoingMessageEnvelope;
import org.apache.samza.system.SystemStream;
import org.apache.samza.system.descriptors.GenericSystemDescriptor;
import org.apache.samza.task.InitableTask;
import org.apache.samza.task.MessageCollector;
import org.apache.samza.task.StreamTask;
import org.apache.samza.task.StreamTaskFactory;
import org.apache.samza.task.TaskCoordinator;

/** Jobs of the tests, which read stream s and write to stream t, and what they read and write themselves. */
final class TestJobs {
    static final String SYSTEM = "kera";
    private static final SystemStream TARGET = new SystemStream(SYSTEM, "t");

    private TestJobs() {}

    /** A job that one process runs, with its checkpoints in Kera. */
    static Map<String, String> config(String address, String job) {
        Map<String, String> config = new HashMap<>();
        config.put("app.name", job);
        config.put("job.name", job);
        config.put("processor.id", "0");
        config.put("job.coordinator.factory", "org.apache.samza.standalone.PassthroughJobCoordinatorFactory");
        config.put("job.coordination.utils.factory", "org.apache.samza.standalone.PassthroughCoordinationUtilsFactory");
        config.put("task.name.grouper.factory", "org.apache.samza.container.grouper.task.SingleContainerGrouperFactory");
        config.put("task.checkpoint.factory", KeraCheckpointManagerFactory.class.getName());
        config.put("task.checkpoint.system", SYSTEM);
        config.put("task.commit.ms", "100");
        // It would listen beyond this machine.
        config.put("job.jmx.enabled", "false");
        config.put("systems.kera.samza.factory", KeraSystemFactory.class.getName());
        config.put("systems.kera.kera.bootstrap", address);
        config.put("systems.kera.default.stream.samza.offset.default", "oldest");
        return config;
    }

    /** Gives a job a store of strings, kept in a directory and in a stream of Kera. */
    static void withStore(Map<String, String> config, Path directory) {
        config.put("job.logged.store.base.dir", directory.toString());
        config.put("job.non-logged.store.base.dir", directory.toString());
        config.put("serializers.registry.string.class", "org.apache.samza.serializers.StringSerdeFactory");
        config.put("stores.counts.factory", "org.apache.samza.storage.kv.RocksDbKeyValueStorageEngineFactory");
        config.put("stores.counts.key.serde", "string");
        config.put("stores.counts.msg.serde", "string");
        config.put("stores.counts.changelog", "kera.counts-changelog");
    }

    private static TaskApplication application(StreamTaskFactory tasks) {
        return descriptor -> {
            GenericSystemDescriptor kera = new GenericSystemDescriptor(SYSTEM, KeraSystemFactory.class.getName());
            KVSerde<String, String> strings = KVSerde.of(new StringSerde(), new StringSerde());
            descriptor.withInputStream(kera.getInputDescriptor("s", strings))
                    .withOutputStream(kera.getOutputDescriptor("t", strings))
                    .withTaskFactory(tasks);
        };
    }

    /** Sends on each record as it is. */
    static TaskApplication copy() {
        return application(() -> (StreamTask) (envelope, collector, coordinator) ->
                collector.send(new OutgoingMessageEnvelope(TARGET, envelope.getKey(), envelope.getMessage())));
    }

    /** Sends each record's partition and ordinal behind a word, and takes its time. */
    static TaskApplication copyPlaces(String word, long nanosEach) {
        return application(() -> (StreamTask) (envelope, collector, coordinator) -> {
            LockSupport.parkNanos(nanosEach);
            int partition = envelope.getSystemStreamPartition().getPartition().getPartitionId();
            String text = word + " " + partition + " " + Position.of(envelope.getOffset()).ordinal();
            collector.send(new OutgoingMessageEnvelope(TARGET, envelope.getKey(), text));
        });
    }

    /** Counts the records of each key in a store, and sends how many there are. */
    static TaskApplication count() {
        return application(Counting::new);
    }

    private static final class Counting implements StreamTask, InitableTask {
        private KeyValueStore<String, String> store;

        @Override
        @SuppressWarnings("unchecked")
        public void init(Context context) {
            store = (KeyValueStore<String, String>) context.getTaskContext().getStore("counts");
        }

        @Override
        public void process(IncomingMessageEnvelope envelope, MessageCollector collector,
                TaskCoordinator coordinator) {
            String key = (String) envelope.getKey();
            String before = store.get(key);
            String now = String.valueOf(before == null ? 1 : Integer.parseInt(before) + 1);
            store.put(key, now);
            collector.send(new OutgoingMessageEnvelope(TARGET, key, now));
        }
    }

    /** Starts a job. */
    static LocalApplicationRunner run(TaskApplication application, Map<String, String> config) {
        LocalApplicationRunner runner = new LocalApplicationRunner(application, new MapConfig(config));
        runner.run();
        return runner;
    }

    /** Stops a job. */
    static void stop(LocalApplicationRunner runner) {
        runner.kill();
        assertTrue(runner.waitForFinish(Duration.ofSeconds(60)), "it does not end");
    }

    /** The last ordinal that is behind a job in stream s, by partition that has one. */
    static Map<Integer, Long> checkpoints(String address, String job, int partitions) {
        CheckpointManager manager = new KeraCheckpointManagerFactory()
                .getCheckpointManager(new MapConfig(config(address, job)), new MetricsRegistryMap());
        manager.createResources();
        manager.start();
        Map<Integer, Long> found = new TreeMap<>();
        for (int partition = 0; partition < partitions; partition++) {
            TaskName task = new TaskName("Partition " + partition);
            manager.register(task);
            Checkpoint checkpoint = manager.readLastCheckpoint(task);
            if (checkpoint != null) {
                checkpoint.getOffsets().forEach((of, offset) -> {
                    if (of.getStream().equals("s")) {
                        found.put(of.getPartition().getPartitionId(), Position.of(offset).ordinal());
                    }
                });
            }
        }
        manager.stop();
        return found;
    }

    /** Waits until checkpoints have all that stream s has. */
    static void awaitCheckpoints(Admin admin, String address, String job) throws InterruptedException, IOException {
        Map<Integer, Long> last = new TreeMap<>();
        int streamlets = admin.stream("s").streamlets().size();
        for (Admin.LaneBounds lane : admin.bounds("s")) {
            if (lane.head() > lane.start()) {
                last.put(lane.lane() * streamlets + lane.streamlet(), lane.head() - 1);
            }
        }
        await("checkpoints at " + last, () -> checkpoints(address, job, last.size()).equals(last));
    }

    static Admin admin(String address) {
        return new Admin(List.of(address), ConnectOptions.DEFAULT);
    }

    /** Numbers as records of a stream, of ten keys; small batches. */
    static void produce(String address, String stream, int from, int to) throws IOException {
        try (Producer producer = new Producer(stream, ProducerOptions.to(address).withBatchSize(1 << 10))) {
            for (int n = from; n < to; n++) {
                producer.append(bytes("key-" + n % 10), bytes(String.valueOf(n)));
            }
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    /** The records of a stream, by partition. */
    static Map<Integer, List<KeraRecord>> records(Admin admin, String name) throws IOException {
        StreamInfo stream = admin.stream(name);
        Map<Integer, List<KeraRecord>> lanes = new TreeMap<>();
        for (Admin.LaneBounds lane : admin.bounds(name)) {
            List<KeraRecord> records = new ArrayList<>();
            try (LaneReader reader = new LaneReader(
                    stream, lane.streamlet(), lane.lane(), lane.start(), lane.head(), ConnectOptions.DEFAULT)) {
                while (!reader.finished()) {
                    records.addAll(reader.read(1 << 20, 1000));
                }
            }
            lanes.put(lane.lane() * stream.streamlets().size() + lane.streamlet(), records);
        }
        return lanes;
    }

    /** All records of a stream as KEY=VALUE. */
    static List<KV<String, String>> pairs(Admin admin, String name) throws IOException {
        return records(admin, name).values().stream().flatMap(List::stream)
                .map(record -> KV.of(text(record.key()), text(record.value()))).toList();
    }

    /** How many records a stream has, without transactions in it. */
    static long stored(Admin admin, String name) {
        try {
            return admin.bounds(name).stream().mapToLong(lane -> lane.head() - lane.start()).sum();
        } catch (IOException error) {
            return -1;
        }
    }

    static void await(String what, BooleanSupplier holds) throws InterruptedException {
        for (int n = 0; n < 6_000; n++) {
            if (holds.getAsBoolean()) {
                return;
            }
            Thread.sleep(10);
        }
        throw new AssertionError("not within a minute: " + what);
    }
}
