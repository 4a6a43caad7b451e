package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Closed groups are read from brokers in the reader's rack. */
@Timeout(120)
class NearReplicasTest {
    private static final int RECORDS = 4_000;
    private static final long SECOND = TimeUnit.SECONDS.toNanos(1);
    private static TestCluster cluster;
    private static Admin admin;

    @BeforeAll
    static void start() throws Exception {
        cluster = TestCluster.inRacks(3);
        admin = new Admin(cluster.addresses(), ConnectOptions.DEFAULT);
    }

    @AfterAll
    static void stop() throws Exception {
        if (cluster != null) {
            admin.close();
            cluster.close();
        }
    }

    /** A stream of one lane, with small groups that all brokers hold. */
    private static StreamInfo stream(String name) throws Exception {
        cluster.createStream(name, "--streamlets", "1", "--lanes", "1", "--replicas", "3", "--min-insync-replicas", "3",
                "--segment-size", "64KiB", "--segments-per-group", "2");
        return admin.stream(name);
    }

    private static String value(int number) {
        return String.format("%08d %s", number, "v".repeat(90));
    }

    private static List<String> values(int from, int to) {
        return IntStream.range(from, to).mapToObj(NearReplicasTest::value).toList();
    }

    private static void produce(String stream, int from, int to) throws Exception {
        ProducerOptions options = ProducerOptions.to(cluster.addresses().toArray(new String[0])).withBatchSize(4 << 10);
        try (Producer producer = Producer.placed(stream, options)) {
            for (int n = from; n < to; n++) {
                producer.appendTo(0, null, value(n).getBytes(StandardCharsets.UTF_8), List.of(), n);
            }
        }
    }

    /** Waits until all brokers hold so many closed groups of the lane. */
    private static void awaitReplicas(StreamInfo stream, int groups) throws Exception {
        String owner = stream.owner(0);
        try (Connection connection = new Connection(owner, ConnectOptions.DEFAULT)) {
            while (true) {
                int held = 0;
                Wire.Reader fields =
                        new Wire.Reader(connection.call(Methods.FIND_COPIES, NearReplicas.request(stream.name(), 0, 0, 0)));
                for (int field; (field = fields.next()) != 0; ) {
                    if (field == 1) {
                        held += holders(fields.part()) == 3 ? 1 : 0;
                    } else {
                        fields.skip();
                    }
                }
                if (held >= groups) {
                    return;
                }
                LockSupport.parkNanos(10_000_000);
            }
        }
    }

    private static int holders(ByteBuffer group) {
        int holders = 0;
        Wire.Reader fields = new Wire.Reader(group);
        for (int field; (field = fields.next()) != 0; ) {
            if (field == 9) {
                holders += fields.numbers().size();
            } else {
                fields.skip();
            }
        }
        return holders;
    }

    private static OwnerConnections connections(String rack) {
        return new OwnerConnections(ConnectOptions.DEFAULT, null, rack);
    }

    private static LaneReader reader(StreamInfo stream, long end, int generation, OwnerConnections connections)
            throws IOException {
        return new LaneReader(stream, 0, 0, 0, end, generation, connections);
    }

    private static void read(LaneReader reader, int maxBytes, List<String> into) throws IOException {
        reader.read(maxBytes, 1_000).forEach(record -> into.add(new String(record.value(), StandardCharsets.UTF_8)));
    }

    private static List<String> readAll(LaneReader reader) throws IOException {
        List<String> found = new ArrayList<>();
        while (!reader.finished()) {
            read(reader, 1 << 20, found);
        }
        return found;
    }

    private static String another(StreamInfo stream) {
        return cluster.addresses().stream().filter(each -> !each.equals(stream.owner(0))).findFirst().orElseThrow();
    }

    @Test
    void whatIsClosedIsReadInTheRackOfTheReader() throws Exception {
        StreamInfo stream = stream("near");
        produce("near", 0, RECORDS);
        awaitReplicas(stream, 3);
        String near = another(stream);
        try (OwnerConnections connections = connections(cluster.rack(near));
                LaneReader reader = reader(stream, RECORDS, LaneReader.ALL_GENERATIONS, connections)) {
            List<String> found = new ArrayList<>();
            read(reader, 1, found);
            assertTrue(found.size() < 100 && reader.replicaBytes() > 0, "the first batch is of a replica");
            assertTrue(connections.existing(near) != null, "that of the broker in the rack");
            found.addAll(readAll(reader));
            assertEquals(values(0, RECORDS), found);
            assertTrue(reader.replicaBytes() > 3 * (64 << 10), "three groups: " + reader.replicaBytes());
            assertEquals(2, connections.count(), "the owner, and the one in the rack");
        }
        for (String rack : List.of(cluster.rack(stream.owner(0)), "elsewhere", "")) {
            try (OwnerConnections connections = connections(rack);
                    LaneReader reader = reader(stream, RECORDS, LaneReader.ALL_GENERATIONS, connections)) {
                assertEquals(values(0, RECORDS), readAll(reader));
                assertEquals(0, reader.replicaBytes(), "the owner is as near to rack " + rack);
                assertEquals(1, connections.count());
            }
        }
    }

    private static List<String> consumed(String stream, ConsumerOptions.Order order, String rack, long[] replicaBytes)
            throws IOException {
        List<String> found = new ArrayList<>();
        ConsumerOptions options =
                ConsumerOptions.to(cluster.addresses().toArray(new String[0])).withOrder(order).withRack(rack);
        try (Consumer consumer = new Consumer(stream, "of-" + order + rack, options)) {
            while (found.size() < RECORDS) {
                consumer.next(Duration.ofSeconds(60)).records()
                        .forEach(record -> found.add(new String(record.value(), StandardCharsets.UTF_8)));
            }
            replicaBytes[0] = consumer.replicaBytes();
        }
        return found;
    }

    @Test
    void membersOfGroupsReadInTheirRackToo() throws Exception {
        StreamInfo stream = stream("shared");
        produce("shared", 0, RECORDS);
        awaitReplicas(stream, 3);
        long[] replicaBytes = new long[1];
        for (ConsumerOptions.Order order : ConsumerOptions.Order.values()) {
            List<String> found = consumed("shared", order, cluster.rack(another(stream)), replicaBytes);
            if (order == ConsumerOptions.Order.NONE) {
                found.sort(null);
            }
            assertEquals(values(0, RECORDS), found, order.toString());
            assertTrue(replicaBytes[0] > 2 * (64 << 10), order + " in the rack: " + replicaBytes[0]);
        }
        assertEquals(values(0, RECORDS), consumed("shared", ConsumerOptions.Order.LANE, cluster.rack(stream.owner(0)), replicaBytes));
        assertEquals(0, replicaBytes[0], "the owner is as near");
    }

    @Test
    void theOwnerIsReadWhereTheReplicaIsGone() throws Exception {
        StreamInfo stream = stream("gone");
        produce("gone", 0, RECORDS);
        awaitReplicas(stream, 3);
        String near = another(stream);
        try (OwnerConnections connections = connections(cluster.rack(near));
                LaneReader reader = reader(stream, RECORDS, LaneReader.ALL_GENERATIONS, connections)) {
            List<String> found = new ArrayList<>();
            read(reader, 1, found);
            long before = reader.replicaBytes();
            assertTrue(before > 0, "the first batch is of a replica");
            cluster.at(near).kill();
            try {
                found.addAll(readAll(reader));
            } finally {
                cluster.at(near).restart();
            }
            assertEquals(values(0, RECORDS), found);
            assertEquals(before, reader.replicaBytes());
            assertNull(connections.existing(near));
        }
    }

    /** What lies behind a generation's end is not read in it, though replicas have it. */
    @Test
    void aGenerationEndsWhereItsOwnerSays() throws Exception {
        StreamInfo stream = stream("grown");
        produce("grown", 0, RECORDS);
        admin.growStream("grown", 2);
        produce("grown", RECORDS, 2 * RECORDS);
        awaitReplicas(stream, 6);
        String near = another(stream);
        try (OwnerConnections connections = connections(cluster.rack(near));
                LaneReader reader = reader(stream, LaneReader.UNBOUNDED, 0, connections)) {
            assertEquals(values(0, RECORDS), readAll(reader));
            assertTrue(reader.replicaBytes() > 2 * (64 << 10), "those below are: " + reader.replicaBytes());
        }
        try (OwnerConnections connections = connections(cluster.rack(near));
                LaneReader reader = new LaneReader(stream, 0, 0, RECORDS, 2 * RECORDS, 1, connections)) {
            assertEquals(values(RECORDS, 2 * RECORDS), readAll(reader));
            assertTrue(reader.replicaBytes() > 0, "and so is the newest generation");
        }
    }

    private static ByteBuffer found(String rack, long... firsts) {
        Wire.Writer answer = new Wire.Writer();
        for (int n = 0; n + 1 < firsts.length; n++) {
            byte[] holders = {1, 2, 3};
            answer.bytes(1, new Wire.Writer().number(5, firsts[n]).number(6, firsts[n + 1]).bytes(9, holders).done());
        }
        for (int id = 1; id <= 3; id++) {
            answer.bytes(2, new Wire.Writer().number(1, id).text(2, "b" + id).text(3, id == 2 ? rack : "other").done());
        }
        return ByteBuffer.wrap(answer.done());
    }

    @Test
    void aHolderThatRefusesOneGroupIsAskedForTheNext() {
        NearReplicas replicas = new NearReplicas("a");
        assertTrue(replicas.isDue(0, false, 0), "a reader begins with a look");
        replicas.found(found("a", 0, 10, 20, 30), "b1", false, 0);
        NearReplicas.Range first = replicas.at(9);
        assertEquals("b2", replicas.holder(first, 0));
        replicas.refused(first, "b2");
        assertNull(replicas.holder(first, 0));
        assertEquals("b2", replicas.holder(replicas.at(10), 0));
        replicas.away("b2", 0);
        assertNull(replicas.holder(replicas.at(10), 9 * SECOND));
        assertEquals("b2", replicas.holder(replicas.at(10), 11 * SECOND));
        assertNull(replicas.at(30), "behind what is known");
        assertTrue(!replicas.isDue(30, true, SECOND - 1) && replicas.isDue(30, false, SECOND));
        replicas.found(found("a"), "b1", false, 2 * SECOND);
        assertTrue(!replicas.isDue(30, true, 11 * SECOND) && replicas.isDue(30, true, 12 * SECOND));
        assertTrue(!replicas.isDue(30, false, 12 * SECOND), "at the head nothing is closed");
        replicas.found(found("a", 30, 40), "b2", false, 0);
        assertNull(replicas.holder(replicas.at(30), 0), "the owner is in the rack");
    }

    private static LeaseReads.Read only(LeaseReads reads) {
        List<LeaseReads.Read> due = reads.due(0);
        assertEquals(1, due.size(), due.toString());
        return due.get(0);
    }

    private static FrameChannel.Frame answer(byte[] header, byte[] body) {
        return new FrameChannel.Frame(0, 0, ByteBuffer.wrap(header), ByteBuffer.wrap(body));
    }

    /** Read up to an ordinal, which is the end if the broker knows. */
    private static byte[] upTo(long next) {
        return new Wire.Writer().bytes(3, new Wire.Writer().number(1, next).done()).number(4, next).number(7, 1).done();
    }

    @Test
    void aMemberReadsOfTheOwnerWhatAReplicaDoesNotGive() {
        ConsumerOptions options = ConsumerOptions.to("b1").withRack("a");
        LeaseReads reads = new LeaseReads(FakeBroker.stream("s", "b1"), options);
        reads.add(List.of(new Lease(1, 0, 0, 0, LaneReader.UNBOUNDED, 0)), 0);
        LeaseReads.Read look = only(reads);
        assertEquals(List.of("b1", FrameChannel.CALL), List.of(look.broker(), look.kind()));
        byte[] groups = new byte[found("a", 0, 10, 20, 30).remaining()];
        found("a", 0, 10, 20, 30).get(groups);
        reads.answered(look, answer(new byte[0], groups), 0);
        LeaseReads.Read prove = only(reads);
        assertEquals(List.of("b1", FrameChannel.READ), List.of(prove.broker(), prove.kind()));
        reads.answered(prove, answer(new byte[0], new byte[1]), 0);
        LeaseReads.Read near = only(reads);
        assertEquals("b2", near.broker());
        // Damaged: the owner is asked, and the application does not hear of it.
        reads.answered(near, answer(upTo(10), new byte[7]), 0);
        assertEquals(7, reads.replicaBytes());
        LeaseReads.Received damaged = reads.take(0);
        assertTrue(damaged.batch() == null && damaged.error() == null && !damaged.finished(), damaged.toString());
        LeaseReads.Read owner = only(reads);
        assertEquals(List.of("b1", LeaseReads.WAIT_MILLIS), List.of(owner.broker(), owner.waitMillis()));
        reads.answered(owner, answer(new Wire.Writer().bytes(3, new Wire.Writer().number(1, 10).done()).done(), new byte[0]), 0);
        // The next group is another one; that the replica sees the end there does not count.
        near = only(reads);
        assertEquals("b2", near.broker());
        reads.answered(near, answer(upTo(20), new byte[0]), 0);
        assertTrue(!reads.take(0).finished(), "the owner alone knows the end");
        near = only(reads);
        assertEquals("b2", near.broker());
        reads.lost(near, 0);
        assertEquals("b1", only(reads).broker());
        assertTrue(!reads.takeRefresh(), "the owner has not gone");
    }

    @Test
    void rangesCountOnceTheirGenerationIsProved() {
        NearReplicas replicas = new NearReplicas("a");
        replicas.found(found("a", 0, 10, 20, 30), "b1", true, 0);
        assertEquals(29, replicas.toProve());
        assertNull(replicas.at(0));
        replicas.proved(false);
        assertEquals(19, replicas.toProve());
        assertNull(replicas.at(0));
        replicas.proved(true);
        assertEquals(-1, replicas.toProve());
        assertEquals(10, replicas.at(19).first());
        assertNull(replicas.at(20));
        replicas.found(found("a", 0, 10), "b1", true, 0);
        replicas.proved(false);
        assertEquals(-1, replicas.toProve());
        assertNull(replicas.at(0));
    }
}
