package io.kera.spark;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.KeraRecord.Header;
import io.kera.client.Login;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.TestBroker;
import io.kera.client.TestCluster;
import io.kera.client.TestIssuer;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.LongStream;
import org.apache.spark.sql.DataFrameReader;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** What is in a stream is read once, in as many parts as are wanted. */
@Timeout(240)
class BatchReadTest {
    private static DataFrameReader reader(TestBroker broker) {
        return TestSpark.session().read().format("kera").option("bootstrap", broker.address()).option("stream", "s");
    }

    private static Admin admin(TestBroker broker) {
        return new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
    }

    @Test
    void rowsHaveAllOfARecord() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()))) {
                producer.append(null, null, List.of(), 1_000);
                byte[] key = {1, 2};
                byte[] value = {3};
                producer.append(key, value, List.of(new Header("a", value), new Header("b", null)), 1_234);
            }
            List<Row> rows = reader(broker).load().orderBy("ordinal").collectAsList();
            assertEquals(2, rows.size());
            Row bare = rows.get(0);
            assertTrue(bare.isNullAt(0) && bare.isNullAt(1));
            assertEquals(0, bare.getList(7).size());
            Row row = rows.get(1);
            assertArrayEquals(new byte[] {1, 2}, (byte[]) row.get(0));
            assertArrayEquals(new byte[] {3}, (byte[]) row.get(1));
            assertEquals("s", row.getString(2));
            assertEquals(0, row.getInt(3));
            assertEquals(0, row.getInt(4));
            assertEquals(1, row.getLong(5));
            assertEquals(new Timestamp(1_234), row.getTimestamp(6));
            List<Row> headers = row.getList(7);
            assertEquals("a", headers.get(0).getString(0));
            assertArrayEquals(new byte[] {3}, (byte[]) headers.get(0).get(1));
            assertTrue(headers.get(1).isNullAt(1));
            assertEquals(2, reader(broker).load().count());
        }
    }

    @Test
    void severalTasksShareALane() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 2);
            admin.createStream("t", 2, 2);
            TestSpark.produce(broker.address(), "s", 0, 4_000);
            TestSpark.produce(broker.address(), "t", 4_000, 4_100);
            var one = reader(broker).load();
            assertEquals(2, one.javaRDD().getNumPartitions());
            assertEquals(TestSpark.numbers(0, 4_000), TestSpark.values(one));
            var many = reader(broker).option("minPartitions", 9).load();
            int parts = many.javaRDD().getNumPartitions();
            assertTrue(parts >= 9 && parts <= 11, parts + " parts");
            assertEquals(TestSpark.numbers(0, 4_000), TestSpark.values(many));
            // None of the parts is empty, and none has nearly everything.
            List<Row> sizes = many.selectExpr("spark_partition_id() part").groupBy("part").count().collectAsList();
            assertEquals(parts, sizes.size());
            assertTrue(sizes.stream().allMatch(row -> row.getLong(1) < 2_000), sizes.toString());
            var both = reader(broker).option("stream", "s, t").load();
            assertEquals(TestSpark.numbers(0, 4_100), TestSpark.values(both));
        }
    }

    @Test
    void aTimeOrTheNewestIsWhereItStartsAndEnds() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 2);
            try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()).withBatchSize(1 << 10))) {
                for (int n = 0; n < 1_000; n++) {
                    byte[] text = String.valueOf(n).getBytes(StandardCharsets.UTF_8);
                    producer.append(text, text, List.of(), 10_000 + n);
                }
            }
            var some = reader(broker).option("startingTimestamp", 10_100).option("endingTimestamp", 10_333).load();
            assertEquals(TestSpark.numbers(100, 333), TestSpark.values(some));
            assertEquals(0, reader(broker).option("startingPosition", "latest").load().count());
            assertEquals(0, reader(broker).option("endingPosition", "earliest").load().count());
            assertEquals(0, reader(broker).option("startingTimestamp", 99_000).load().count());
        }
    }

    @Test
    void onlyWhatIsCommittedIsRead() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            ProducerOptions options = ProducerOptions.to(broker.address()).withTransactionalId("id");
            try (Producer producer = new Producer("s", options)) {
                producer.beginTransaction();
                producer.append(null, new byte[] {'1'});
                producer.commitTransaction();
                producer.beginTransaction();
                producer.append(null, new byte[] {'2'});
                producer.abortTransaction();
                producer.beginTransaction();
                producer.append(null, new byte[] {'3'});
                producer.commitTransaction();
                producer.beginTransaction();
                producer.append(null, new byte[] {'4'});
                producer.flush();
                // The markers follow the decision.
                for (int n = 0; n < 500 && reader(broker).load().count() < 2; n++) {
                    Thread.sleep(10);
                }
                assertEquals(List.of(1, 3), TestSpark.values(reader(broker).load()));
            }
        }
    }

    private static List<Long> read(RangeReader reader) throws IOException {
        List<Long> ordinals = new ArrayList<>();
        while (reader.next()) {
            ordinals.add(reader.get().getLong(0));
        }
        return ordinals;
    }

    private static RangeReader range(TestBroker broker, long start, long end, boolean failOnDataLoss) throws IOException {
        KeraOptions options = new KeraOptions(
                new CaseInsensitiveStringMap(Map.of("bootstrap", broker.address(), "stream", "s")));
        return range(options, id(options), start, end, failOnDataLoss);
    }

    private static RangeReader range(KeraOptions options, String id, long start, long end, boolean failOnDataLoss)
            throws IOException {
        LaneRange range = new LaneRange(new LaneId("s", 0, 0), id, start, end);
        return new RangeReader(options.access(), range, new KeraColumn[] {KeraColumn.ORDINAL}, failOnDataLoss);
    }

    private static String id(KeraOptions options) throws IOException {
        try (Admin admin = options.access().admin()) {
            return StreamLook.hex(admin.stream("s").id());
        }
    }

    @Test
    void noOtherStreamOfTheNameIsRead() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            KeraOptions options = new KeraOptions(
                    new CaseInsensitiveStringMap(Map.of("bootstrap", broker.address(), "stream", "s")));
            admin.createStream("s", 1, 1);
            String before = id(options);
            admin.deleteStream("s");
            admin.createStream("s", 1, 1);
            TestSpark.produce(broker.address(), "s", 0, 100);
            try (RangeReader reader = range(options, before, 0, 10, false)) {
                Exception other = assertThrows(IllegalStateException.class, reader::next);
                assertTrue(other.getMessage().contains("its id was " + before + " and is " + id(options)), other.getMessage());
            }
        }
    }

    @Test
    void manyPartsOfALaneAreMergedToWhatIsWanted() {
        LaneRange all = new LaneRange(new LaneId("s", 0, 0), "0a", 0, 200_000);
        List<LaneRange> parts = new ArrayList<>();
        for (int n = 0; n < all.end(); n++) {
            parts.add(all.between(n, n + 1));
        }
        List<LaneRange> merged = RangeCutter.merged(List.of(parts), parts.size(), 20_000);
        assertEquals(20_000, merged.size());
        long next = 0;
        for (LaneRange each : merged) {
            assertEquals(next, each.start());
            assertEquals(next + 10, each.end());
            next = each.end();
        }
    }

    @Test
    void aRangeIsReadToTheRecord() throws Exception {
        // It begins and ends within batches.
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            TestSpark.produce(broker.address(), "s", 0, 1_000);
            try (RangeReader reader = range(broker, 3, 998, true)) {
                List<Long> first = new ArrayList<>();
                for (int n = 0; n < 5; n++) {
                    assertTrue(reader.next());
                    InternalRow row = reader.get();
                    first.add(row.getLong(0));
                }
                assertEquals(List.of(3L, 4L, 5L, 6L, 7L), first);
                assertEquals(998 - 8, read(reader).size());
            }
        }
    }

    @Test
    void aRangeIsReadOverAKillOfTheBroker() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()))) {
                for (int n = 0; n < 40; n++) {
                    // More than one answer has room for.
                    producer.append(null, new byte[100_000]);
                }
            }
            try (RangeReader reader = range(broker, 0, 40, true)) {
                assertTrue(reader.next());
                broker.kill();
                broker.restart();
                List<Long> rest = read(reader);
                assertEquals(39, rest.size());
                assertEquals(39, rest.get(38));
            }
        }
    }

    /** How many bytes a task in a rack reads from replicas. */
    private static long readIn(TestCluster cluster, String rack) throws Exception {
        Map<String, String> given = new HashMap<>(Map.of("bootstrap", String.join(",", cluster.addresses()), "stream", "s"));
        if (rack != null) {
            given.put("rack", rack);
        }
        KeraOptions options = new KeraOptions(new CaseInsensitiveStringMap(given));
        try (RangeReader reader = range(options, id(options), 0, 4_000, true)) {
            assertEquals(LongStream.range(0, 4_000).boxed().toList(), read(reader));
            return reader.replicaBytes();
        }
    }

    @Test
    void aTaskReadsInItsRack() throws Exception {
        try (TestCluster cluster = TestCluster.inRacks(3);
                Admin admin = new Admin(cluster.addresses(), ConnectOptions.DEFAULT)) {
            cluster.createStream("s", "--streamlets", "1", "--lanes", "1", "--replicas", "3", "--min-insync-replicas", "3",
                    "--segment-size", "64KiB", "--segments-per-group", "2");
            ProducerOptions options = ProducerOptions.to(cluster.addresses().toArray(String[]::new)).withBatchSize(4 << 10);
            try (Producer producer = new Producer("s", options)) {
                for (int n = 0; n < 4_000; n++) {
                    producer.append(null, new byte[100]);
                }
            }
            String owner = admin.stream("s").owner(0);
            String another = cluster.addresses().stream().filter(each -> !each.equals(owner)).findFirst().orElseThrow();
            // Groups may still be on their way to the state in which all hold them.
            while (readIn(cluster, cluster.rack(another)) < 2 * (64 << 10)) {
                Thread.onSpinWait();
            }
            assertEquals(0, readIn(cluster, cluster.rack(owner)));
            assertEquals(0, readIn(cluster, null));
        }
    }

    @Test
    void deletedRecordsAreToldOrPassedOver() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            TestSpark.produce(broker.address(), "s", 0, 100);
            broker.run("", "stream", "trim", "s", "--ordinal", "40", "--streamlet", "0", "--lane", "0");
            try (RangeReader reader = range(broker, 10, 60, true)) {
                IOException lost = assertThrows(IOException.class, reader::next);
                assertTrue(lost.getMessage().contains("s:0/0 [10, 60) from 10 on were deleted")
                        && lost.getMessage().contains("failOnDataLoss"), lost.getMessage());
            }
            try (RangeReader reader = range(broker, 10, 60, false)) {
                List<Long> ordinals = read(reader);
                assertEquals(20, ordinals.size());
                assertEquals(40, ordinals.get(0));
            }
            try (RangeReader reader = range(broker, 10, 30, false)) {
                assertEquals(List.of(), read(reader));
            }
        }
    }

    @Test
    void usersLogIn(@TempDir Path home) throws Exception {
        try (TestBroker broker = TestBroker.withUsers("open sesame", "ann")) {
            Path file = home.resolve("password");
            Files.writeString(file, "open sesame\n");
            var as = reader(broker).option("user", "ann");
            Exception missing = assertThrows(Exception.class, () -> as.option("password", "wrong").load().count());
            assertTrue(missing.getMessage().contains("ann"), missing.getMessage());
            var by = reader(broker).option("user", "ann").option("password-file", file.toString()).load();
            Exception refused = assertThrows(Exception.class, by::count);
            assertTrue(refused.getMessage().contains("stream s") || refused.getMessage().contains("\"s\""), refused.getMessage());
        }
    }

    @Test
    void tokensLogIn(@TempDir Path home) throws Exception {
        TestIssuer issuer = new TestIssuer(home);
        Path file = home.resolve("token");
        Files.writeString(file, issuer.token("ann", 600));
        try (TestBroker broker = TestBroker.start(issuer.flags().toArray(new String[0]))) {
            ConnectOptions ann = ConnectOptions.DEFAULT.withLogin(Login.ofTokenFile(file));
            try (Admin admin = new Admin(List.of(broker.address()), ann)) {
                issuer.awaitKeys(admin);
                admin.createStream("s", 1, 1);
            }
            assertEquals(0, reader(broker).option("token-file", file.toString()).load().count());
            Files.writeString(file, "none at all");
            Exception refused = assertThrows(Exception.class,
                    () -> reader(broker).option("token-file", file.toString()).load().count());
            assertTrue(refused.getMessage().contains("there is no token"), refused.getMessage());
        }
    }

    @Test
    void whatIsNoOptionIsRefused() {
        Map<String, String> hints = Map.of(
                "startingPositon", "did you mean \"startingPosition\"",
                "kafka.bootstrap.servers", "known are bootstrap, stream",
                "minpartition", "did you mean \"minPartitions\"");
        hints.forEach((option, hint) -> {
            Exception refused = assertThrows(
                    IllegalArgumentException.class, () -> new KeraOptions(new CaseInsensitiveStringMap(Map.of(option, "1"))));
            assertTrue(refused.getMessage().contains(hint), refused.getMessage());
        });
        Map<String, Map<String, String>> wrong = Map.of(
                "set the option stream", Map.of("bootstrap", "localhost:1"),
                "use earliest or latest", Map.of("stream", "s", "startingPosition", "first"),
                "set one of startingPosition", Map.of("stream", "s", "startingPosition", "latest", "startingTimestamp", "1"),
                "which is no number", Map.of("stream", "s", "minPartitions", "many"),
                "use 1 or more", Map.of("stream", "s", "minPartitions", "0"),
                "user goes together", Map.of("stream", "s", "user", "ann"),
                "leave user and sasl.mechanism out", Map.of("stream", "s", "token-file", "t", "sasl.mechanism", "PLAIN"),
                "need tls.ca", Map.of("stream", "s", "tls.key", "k", "tls.certificate", "c"),
                "is no mechanism", Map.of("stream", "s", "sasl.mechanism", "GSSAPI"));
        wrong.forEach((why, given) -> {
            Exception refused = assertThrows(Exception.class, () -> {
                KeraOptions options = new KeraOptions(new CaseInsensitiveStringMap(given));
                options.streams();
                options.start();
                options.minPartitions();
                options.access();
            });
            assertTrue(refused.getMessage().contains(why), refused.getMessage());
        });
        Exception refused = assertThrows(Exception.class,
                () -> TestSpark.session().read().format("kera").option("streem", "s").load().count());
        assertTrue(refused.getMessage().contains("did you mean \"stream\""), refused.getMessage());
    }
}
