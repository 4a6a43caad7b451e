package io.kera.samza;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.KeraRecord;
import io.kera.client.LanePosition;
import io.kera.client.Partitions;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.TestBroker;
import io.kera.client.TestCluster;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.LongStream;
import org.apache.samza.Partition;
import org.apache.samza.SamzaException;
import org.apache.samza.checkpoint.CheckpointManager;
import org.apache.samza.checkpoint.CheckpointV1;
import org.apache.samza.config.MapConfig;
import org.apache.samza.container.TaskName;
import org.apache.samza.metrics.Counter;
import org.apache.samza.metrics.MetricsRegistryMap;
import org.apache.samza.startpoint.StartpointSpecific;
import org.apache.samza.startpoint.StartpointTimestamp;
import org.apache.samza.startpoint.StartpointUpcoming;
import org.apache.samza.system.IncomingMessageEnvelope;
import org.apache.samza.system.OutgoingMessageEnvelope;
import org.apache.samza.system.StreamSpec;
import org.apache.samza.system.StreamValidationException;
import org.apache.samza.system.SystemAdmin;
import org.apache.samza.system.SystemConsumer;
import org.apache.samza.system.SystemProducer;
import org.apache.samza.system.SystemProducerException;
import org.apache.samza.system.SystemStream;
import org.apache.samza.system.SystemStreamMetadata.SystemStreamPartitionMetadata;
import org.apache.samza.system.SystemStreamPartition;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Admin, consumer, producer and checkpoints, each as Samza uses it. */
@Timeout(240)
class SystemTest {
    private static final SystemStreamPartition FIRST = new SystemStreamPartition(TestJobs.SYSTEM, "s", new Partition(0));

    private TestBroker broker;
    private Admin admin;
    private Map<String, String> config;

    @BeforeEach
    void start() throws IOException {
        broker = TestBroker.start();
        admin = TestJobs.admin(broker.address());
        config = TestJobs.config(broker.address(), "job");
    }

    @AfterEach
    void stop() throws IOException {
        admin.close();
        broker.close();
    }

    private SystemSettings settings() {
        return new SystemSettings(TestJobs.SYSTEM, new MapConfig(config));
    }

    private static SystemStreamPartitionMetadata of(SystemAdmin system, String stream, int partition) {
        return system.getSystemStreamMetadata(Set.of(stream)).get(stream).getSystemStreamPartitionMetadata()
                .get(new Partition(partition));
    }

    @Test
    void theAdminTellsWhereLanesBeginAndEnd() throws Exception {
        admin.createStream("s", 1, 2);
        TestJobs.produce(broker.address(), "s", 0, 100);
        long head = TestJobs.records(admin, "s").get(0).size();
        SystemAdmin system = new KeraSystemAdmin(settings());
        String suffix = Position.suffix(KeraSystemAdmin.hex(admin.stream("s").id()), 2);
        SystemStreamPartitionMetadata lane = of(system, "s", 0);
        assertEquals("0" + suffix, lane.getOldestOffset());
        assertEquals(head - 1 + suffix, lane.getNewestOffset());
        assertEquals(head + suffix, lane.getUpcomingOffset());
        assertEquals(2, system.getSystemStreamPartitionCounts(Set.of("s"), 0).get("s").getSystemStreamPartitionMetadata().size());
        assertEquals(Map.of(FIRST, "5" + suffix), system.getOffsetsAfter(Map.of(FIRST, "4" + suffix)));
        assertTrue(system.offsetComparator("9" + suffix, "10" + suffix) < 0);
        assertEquals(0, system.offsetComparator("9", "9" + suffix));
        assertNull(system.offsetComparator("9" + suffix, "9" + Position.suffix("0".repeat(32), 2)));
        assertEquals(head + suffix, system.resolveStartpointToOffset(FIRST, new StartpointUpcoming()));
        assertEquals("7", system.resolveStartpointToOffset(FIRST, new StartpointSpecific("7")));
        long time = TestJobs.records(admin, "s").get(0).get(20).timestamp();
        Position from = Position.of(system.resolveStartpointToOffset(FIRST, new StartpointTimestamp(time)));
        assertEquals(time, TestJobs.records(admin, "s").get(0).get((int) from.ordinal()).timestamp());
        assertTrue(from.ordinal() <= 20);
        assertThrows(SamzaException.class, () -> system.getSystemStreamMetadata(Set.of("none")));
        system.stop();
    }

    @Test
    void theAdminMakesStreamsOfStateThatAreCompacted() throws Exception {
        SystemAdmin system = new KeraSystemAdmin(settings());
        StreamSpec changelog = StreamSpec.createChangeLogStreamSpec("state", TestJobs.SYSTEM, 3);
        assertTrue(system.createStream(changelog));
        assertFalse(system.createStream(changelog));
        system.validateStream(changelog);
        // As Samza has Kafka keep records for restores that end at a checkpoint.
        assertTrue(broker.run("", "stream", "describe", "state", "--json").contains("\"min_compaction_lag_ms\": 14400000"));
        assertTrue(broker.run("", "stream", "describe", "state").contains("compact"));
        assertThrows(StreamValidationException.class,
                () -> system.validateStream(StreamSpec.createChangeLogStreamSpec("state", TestJobs.SYSTEM, 2)));
        SystemStreamPartitionMetadata empty = of(system, "state", 2);
        assertNull(empty.getNewestOffset());
        assertEquals(empty.getUpcomingOffset(), empty.getOldestOffset());
        assertTrue(system.getAllSystemStreams().contains(new SystemStream(TestJobs.SYSTEM, "state")));
        assertTrue(system.clearStream(changelog));
        assertTrue(system.clearStream(changelog));
        system.stop();
    }

    private static List<Long> read(SystemConsumer consumer, int records) throws InterruptedException {
        List<Long> ordinals = new ArrayList<>();
        while (ordinals.size() < records) {
            for (IncomingMessageEnvelope each : consumer.poll(Set.of(FIRST), 1000).getOrDefault(FIRST, List.of())) {
                ordinals.add(Position.of(each.getOffset()).ordinal());
            }
        }
        return ordinals;
    }

    @Test
    void theConsumerBeginsAtTheLeastOffsetAndKnowsTheHead() throws Exception {
        admin.createStream("s", 1, 1);
        TestJobs.produce(broker.address(), "s", 0, 100);
        SystemConsumer consumer = new KeraSystemConsumer(settings(), new MetricsRegistryMap());
        consumer.register(FIRST, "60");
        consumer.register(FIRST, "40");
        consumer.register(FIRST, "90");
        consumer.start();
        List<Long> ordinals = read(consumer, 60);
        assertEquals(40L, ordinals.get(0));
        assertEquals(99L, ordinals.get(59));
        // Nothing is outstanding: it answers at once.
        assertEquals(Map.of(), consumer.poll(Set.of(FIRST), SystemConsumer.BLOCK_ON_OUTSTANDING_MESSAGES));
        TestJobs.produce(broker.address(), "s", 100, 110);
        assertEquals(List.of(100L, 101L, 102L, 103L, 104L, 105L, 106L, 107L, 108L, 109L), read(consumer, 10));
        consumer.stop();
    }

    /** How many bytes a process in a rack reads from replicas. */
    private static long readIn(TestCluster cluster, String rack) throws Exception {
        Map<String, String> given = TestJobs.config(cluster.any().address(), "job");
        if (rack != null) {
            given.put("systems.kera.kera.rack", rack);
        }
        MetricsRegistryMap metrics = new MetricsRegistryMap();
        KeraSystemConsumer consumer = new KeraSystemConsumer(new SystemSettings(TestJobs.SYSTEM, new MapConfig(given)), metrics);
        consumer.register(FIRST, "0");
        consumer.start();
        List<Long> ordinals = read(consumer, 4_000);
        consumer.stop();
        assertEquals(LongStream.range(0, 4_000).boxed().toList(), ordinals);
        return ((Counter) metrics.getGroup(KeraSystemConsumer.class.getName()).get("kera-replica-bytes-read")).getCount();
    }

    @Test
    void theConsumerReadsInItsRack() throws Exception {
        try (TestCluster cluster = TestCluster.inRacks(3); Admin of = TestJobs.admin(cluster.any().address())) {
            cluster.createStream("s", "--streamlets", "1", "--lanes", "1", "--replicas", "3", "--min-insync-replicas", "3",
                    "--segment-size", "64KiB", "--segments-per-group", "2");
            ProducerOptions options = ProducerOptions.to(cluster.any().address()).withBatchSize(4 << 10);
            try (Producer producer = new Producer("s", options)) {
                for (int n = 0; n < 4_000; n++) {
                    producer.append(null, new byte[100]);
                }
            }
            String owner = of.stream("s").owner(0);
            String another = cluster.addresses().stream().filter(each -> !each.equals(owner)).findFirst().orElseThrow();
            // Groups may still be on their way to the state in which all hold them.
            while (readIn(cluster, cluster.rack(another)) < 2 * (64 << 10)) {
                Thread.onSpinWait();
            }
            assertEquals(0, readIn(cluster, cluster.rack(owner)));
            assertEquals(0, readIn(cluster, null));
        }
    }

    private void awaitPin(List<LanePosition> positions) throws Exception {
        TestJobs.await("pin p-0 at " + positions, () -> {
            try {
                return admin.pins("s").pins().stream()
                        .anyMatch(pin -> pin.name().equals("p-0") && Set.copyOf(pin.positions()).equals(Set.copyOf(positions)));
            } catch (IOException error) {
                return false;
            }
        });
    }

    /** Of a stream of which another process reads the third lane. */
    @Test
    void checkpointsMoveThePinOfTheirProcess() throws Exception {
        admin.createStream("s", 1, 3);
        try (Producer producer = Producer.placed("s", ProducerOptions.to(broker.address()))) {
            for (int n = 0; n < 30; n++) {
                producer.appendTo(n % 3, null, new byte[1], List.of(), 0);
            }
        }
        config.put("systems.kera.kera.pin", "p");
        config.put("systems.kera.kera.pin.required", "true");
        SystemStreamPartition second = new SystemStreamPartition(TestJobs.SYSTEM, "s", new Partition(1));
        KeraSystemConsumer consumer = new KeraSystemConsumer(settings(), new MetricsRegistryMap());
        consumer.register(FIRST, "2");
        consumer.register(second, "3");
        consumer.start();
        assertEquals(List.of(), admin.pins("s").pins(), "there is no checkpoint");
        consumer.afterCheckpoint(Map.of(FIRST, "4"));
        awaitPin(List.of(new LanePosition(0, 0, 5), new LanePosition(0, 1, 3), new LanePosition(0, 2, 10)));
        consumer.afterCheckpoint(Map.of(second, "7", new SystemStreamPartition(TestJobs.SYSTEM, "t", new Partition(0)), "9"));
        awaitPin(List.of(new LanePosition(0, 0, 5), new LanePosition(0, 1, 8), new LanePosition(0, 2, 10)));
        // What it needs is gone.
        broker.run("", "stream", "trim", "s", "--streamlet", "0", "--lane", "0", "--ordinal", "9");
        consumer.afterCheckpoint(Map.of(FIRST, "5"));
        TestJobs.await("the job to end", () -> {
            try {
                consumer.poll(Set.of(FIRST), 0);
                return false;
            } catch (SamzaException error) {
                return error.getMessage().contains("lane s:0/0 lost records from ordinal 6 on before pin p-0 was set");
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        });
        consumer.stop();
    }

    @Test
    void theConsumerReadsNoMoreThanItMayHold() throws Exception {
        admin.createStream("s", 1, 2);
        int most = 3 << 20;
        config.put("systems.kera.kera.read-ahead.bytes", "1000");
        SystemStreamPartition second = new SystemStreamPartition(TestJobs.SYSTEM, "s", new Partition(1));
        KeraSystemConsumer consumer = new KeraSystemConsumer(settings(), new MetricsRegistryMap());
        try (Producer producer = Producer.placed("s", ProducerOptions.to(broker.address()))) {
            for (int n = 0; n < 6 << 10; n++) {
                producer.appendTo(0, null, new byte[1 << 10], List.of(), 0);
            }
            producer.flush();
            consumer.register(FIRST, "0");
            consumer.register(second, "0");
            consumer.start();
            for (int turn = 0; turn < 10; turn++) {
                producer.appendTo(1, null, new byte[1], List.of(), 0);
                producer.flush();
                // Each turn of the one lane is one of the other too.
                while (consumer.poll(Set.of(second), 1000).isEmpty()) {
                    assertTrue(consumer.getMessagesSizeInQueue(FIRST) < most);
                }
            }
            long waiting = consumer.getMessagesSizeInQueue(FIRST);
            assertTrue(waiting > 0 && waiting < most, waiting + " bytes wait");
        }
        List<Long> ordinals = read(consumer, 6 << 10);
        for (int n = 0; n < ordinals.size(); n++) {
            assertEquals(n, ordinals.get(n));
        }
        consumer.stop();
    }

    @Test
    void deletedRecordsEndTheJobUnlessItMayGoOn() throws Exception {
        admin.createStream("s", 1, 1);
        TestJobs.produce(broker.address(), "s", 0, 100);
        broker.run("", "stream", "trim", "s", "--ordinal", "50", "--streamlet", "0", "--lane", "0");
        TestJobs.await("they are gone", () -> TestJobs.stored(admin, "s") < 90);
        KeraSystemConsumer strict = new KeraSystemConsumer(settings(), new MetricsRegistryMap());
        strict.register(FIRST, "10");
        strict.start();
        SamzaException told = assertThrows(SamzaException.class, () -> read(strict, 100));
        assertTrue(told.getMessage().contains("were deleted before job job read them"), told.getMessage());
        strict.stop();
        config.put("systems.kera.kera.on-data-loss", "oldest");
        KeraSystemConsumer lenient = new KeraSystemConsumer(settings(), new MetricsRegistryMap());
        lenient.register(FIRST, "10");
        lenient.start();
        long start = admin.bounds("s").get(0).start();
        assertEquals(start, read(lenient, (int) (100 - start)).get(0));
        lenient.stop();
    }

    private static OutgoingMessageEnvelope envelope(Object partitionKey, String key, String value) {
        return new OutgoingMessageEnvelope(new SystemStream(TestJobs.SYSTEM, "t"), partitionKey,
                key == null ? null : TestJobs.bytes(key), TestJobs.bytes(value));
    }

    @Test
    void recordsGoWhereTheirKeyOrTheirPartitionIs() throws Exception {
        admin.createStream("t", 2, 2);
        SystemProducer producer = new KeraSystemProducer(settings());
        producer.start();
        producer.register("task");
        producer.send("task", envelope(null, "ann", "by key"));
        producer.send("task", envelope("ann", "ann", "by key"));
        producer.send("task", envelope(3, "ann", "third"));
        producer.send("task", envelope(6, null, "second"));
        producer.send("task", envelope("red", "ann", "by another key"));
        producer.flush("task");
        producer.stop();
        Map<Integer, List<KeraRecord>> lanes = TestJobs.records(admin, "t");
        Map<Integer, List<String>> expected = new HashMap<>();
        for (int partition = 0; partition < 4; partition++) {
            expected.put(partition, new ArrayList<>());
        }
        int ann = Partitions.of(TestJobs.bytes("ann"), 4);
        expected.get(ann).addAll(List.of("by key", "by key"));
        expected.get(3).add("third");
        expected.get(2).add("second");
        expected.get(Math.floorMod("red".hashCode(), 4)).add("by another key");
        Map<Integer, List<String>> found = new HashMap<>();
        lanes.forEach((partition, records) ->
                found.put(partition, records.stream().map(record -> TestJobs.text(record.value())).sorted().toList()));
        expected.values().forEach(values -> values.sort(null));
        assertEquals(expected, found);
    }

    @Test
    void whatWasGivenUpFailsTheFlushOfEveryTask() throws Exception {
        admin.createStream("t", 1, 1);
        config.put("systems.kera.kera.producer.deadline.ms", "1000");
        SystemProducer producer = new KeraSystemProducer(settings());
        producer.send("one", envelope(null, "ann", "stored"));
        producer.flush("one");
        broker.kill();
        producer.send("one", envelope(null, "ann", "given up"));
        SystemProducerException told = assertThrows(SystemProducerException.class, () -> producer.flush("two"));
        assertTrue(told.getMessage().contains("stream t of system kera did not take a record of job job"), told.getMessage());
        // The other one has not been told before, and must not checkpoint.
        assertThrows(SystemProducerException.class, () -> producer.flush("one"));
        broker.restart();
        assertThrows(SystemProducerException.class, () -> producer.send("two", envelope(null, "ann", "after it")));
        assertThrows(SystemProducerException.class, () -> producer.flush("two"));
        producer.stop();
    }

    private CheckpointManager checkpoints(String... tasks) {
        CheckpointManager manager =
                new KeraCheckpointManagerFactory().getCheckpointManager(new MapConfig(config), new MetricsRegistryMap());
        manager.createResources();
        manager.start();
        for (String task : tasks) {
            manager.register(new TaskName(task));
        }
        return manager;
    }

    @Test
    void theNewestCheckpointOfEachTaskCounts() throws Exception {
        CheckpointManager manager = checkpoints("Partition 0", "Partition 1");
        TaskName task = new TaskName("Partition 0");
        assertNull(manager.readLastCheckpoint(task));
        for (int n = 0; n < 3; n++) {
            manager.writeCheckpoint(task, new CheckpointV1(Map.of(FIRST, String.valueOf(n))));
            assertEquals(Map.of(FIRST, String.valueOf(n)), manager.readLastCheckpoint(task).getOffsets());
        }
        manager.stop();
        CheckpointManager next = checkpoints("Partition 0", "Partition 1");
        assertEquals(Map.of(FIRST, "2"), next.readLastCheckpoint(task).getOffsets());
        assertNull(next.readLastCheckpoint(new TaskName("Partition 1")));
        assertThrows(SamzaException.class, () -> next.readLastCheckpoint(new TaskName("Partition 2")));
        next.stop();
        assertTrue(broker.run("", "stream", "describe", "samza-checkpoints_job_1").contains("compact"));
        config.put("job.systemstreampartition.grouper.factory",
                "org.apache.samza.container.grouper.stream.AllSspToSingleTaskGrouperFactory");
        CheckpointManager other = checkpoints("Partition 0");
        SamzaException told = assertThrows(SamzaException.class, () -> other.readLastCheckpoint(task));
        assertTrue(told.getMessage().contains("its tasks are others"), told.getMessage());
        other.clearCheckpoints();
        other.stop();
        CheckpointManager cleared = checkpoints("Partition 0");
        assertNull(cleared.readLastCheckpoint(task));
        cleared.stop();
    }

    @Test
    void aCheckpointThatIsNotWrittenIsTold() throws Exception {
        config.put("systems.kera.kera.producer.deadline.ms", "1000");
        CheckpointManager manager = checkpoints("Partition 0");
        TaskName task = new TaskName("Partition 0");
        manager.writeCheckpoint(task, new CheckpointV1(Map.of(FIRST, "1")));
        broker.kill();
        for (int n = 0; n < 2; n++) {
            SamzaException told = assertThrows(SamzaException.class,
                    () -> manager.writeCheckpoint(task, new CheckpointV1(Map.of(FIRST, "2"))));
            assertTrue(told.getMessage().contains("the checkpoint of Partition 0 was not written"), told.getMessage());
        }
        manager.stop();
    }
}
