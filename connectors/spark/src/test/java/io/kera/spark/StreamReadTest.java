package io.kera.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.TestBroker;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import org.apache.spark.api.java.function.VoidFunction2;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.streaming.DataStreamReader;
import org.apache.spark.sql.streaming.DataStreamWriter;
import org.apache.spark.sql.streaming.StreamingQueryException;
import org.apache.spark.sql.streaming.Trigger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Queries read each record once and lanes in order, whatever fails, also while lanes grow. */
@Timeout(240)
class StreamReadTest {
    /** What a fault does before a micro-batch is read. */
    private interface Fault {
        void before(long batch) throws Exception;
    }

    /** The rows of each micro-batch: what a repeated one has must be the same. */
    private final SortedMap<Long, List<Row>> batches = new TreeMap<>();

    private static Admin admin(TestBroker broker) {
        return new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
    }

    private static DataStreamReader reader(TestBroker broker) {
        return TestSpark.session().readStream().format("kera").option("bootstrap", broker.address()).option("stream", "s");
    }

    private DataStreamWriter<Row> query(DataStreamReader reader, Path checkpoint, Fault fault) {
        VoidFunction2<Dataset<Row>, Long> take = (rows, batch) -> {
            fault.before(batch);
            List<Row> found = rows.selectExpr("lane", "ordinal", "cast(value as string)", "cast(key as string)").collectAsList();
            List<Row> before = batches.put(batch, found);
            assertTrue(before == null || before.equals(found), "batch " + batch + " had other records before");
            if (before == null) {
                // After it was read, and before it is complete.
                fault.before(-batch - 1);
            }
        };
        return reader.load().writeStream().foreachBatch(take).option("checkpointLocation", checkpoint.toString())
                .trigger(Trigger.AvailableNow());
    }

    private static void run(DataStreamWriter<Row> query) throws Exception {
        query.start().awaitTermination();
    }

    /** Each number once, and lanes in order. */
    private void sees(int records) {
        Map<Integer, Long> lanes = new HashMap<>();
        List<Integer> values = new ArrayList<>();
        batches.values().forEach(rows -> rows.forEach(row -> {
            Long before = lanes.put(row.getInt(0), row.getLong(1));
            assertTrue(before == null || before < row.getLong(1), "lane " + row.getInt(0) + " goes back to " + row);
            values.add(Integer.parseInt(row.getString(2)));
        }));
        values.sort(null);
        assertEquals(TestSpark.numbers(0, records), values);
    }

    @Test
    void eachRecordPassesOnceWhateverFails(@TempDir Path checkpoint) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 2);
            TestSpark.produce(broker.address(), "s", 0, 2_000);
            Fault fault = batch -> {
                if (batch == -3) {
                    // What comes then is not part of the micro-batch when it is read again.
                    TestSpark.produce(broker.address(), "s", 2_000, 3_000);
                    throw new IllegalStateException("a failure of the test");
                }
                if (batch == 4) {
                    broker.kill();
                    broker.restart();
                }
            };
            DataStreamReader limited = reader(broker).option("maxRecordsPerTrigger", 300);
            assertThrows(StreamingQueryException.class, () -> run(query(limited, checkpoint, fault)));
            assertEquals(3, batches.size());
            run(query(limited, checkpoint, fault));
            assertTrue(batches.size() >= 10, batches.size() + " micro-batches");
            batches.values().forEach(rows -> assertTrue(rows.size() < 600, rows.size() + " rows"));
            sees(3_000);
            TestSpark.produce(broker.address(), "s", 3_000, 4_000);
            int before = batches.size();
            run(query(reader(broker).option("maxBytesPerTrigger", 20_000).option("group", "g"), checkpoint, fault));
            assertTrue(batches.size() > before + 1, "one micro-batch for 40 kB");
            sees(4_000);
            assertTrue(broker.run("", "group", "describe", "g").contains("s"), "the group shows nothing");
        }
    }

    @Test
    void whereAQueryBeganIsKeptWithoutARecord(@TempDir Path checkpoint) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            TestSpark.produce(broker.address(), "s", 0, 10);
            DataStreamReader latest = reader(broker).option("startingPosition", "latest");
            run(query(latest, checkpoint, batch -> {}));
            assertEquals(0, batches.values().stream().mapToInt(List::size).sum());
            TestSpark.produce(broker.address(), "s", 10, 20);
            run(query(latest, checkpoint, batch -> {}));
            assertEquals(10, batches.values().stream().mapToInt(List::size).sum());
            admin.deleteStream("s");
            admin.createStream("s", 1, 1);
            TestSpark.produce(broker.address(), "s", 0, 100);
            Exception other = assertThrows(Exception.class, () -> run(query(latest, checkpoint, batch -> {})));
            assertTrue(other.getMessage().contains("was deleted, and another one has its name"), other.getMessage());
        }
    }

    private static void isOfAnother(Exception refused) {
        assertTrue(refused.getMessage().contains("stream s was deleted, and another one has its name"), refused.getMessage());
    }

    @Test
    void aMicroBatchThatIsRepeatedReadsNoOtherStreamOfTheName(@TempDir Path checkpoint) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            TestSpark.produce(broker.address(), "s", 0, 1_000);
            DataStreamReader limited = reader(broker).option("maxRecordsPerTrigger", 300);
            Fault fault = batch -> {
                if (batch == 1) {
                    throw new IllegalStateException("a failure of the test");
                }
            };
            assertThrows(StreamingQueryException.class, () -> run(query(limited, checkpoint, fault)));
            assertEquals(List.of(0L), List.copyOf(batches.keySet()));
            admin.deleteStream("s");
            admin.createStream("s", 1, 1);
            TestSpark.produce(broker.address(), "s", 5_000, 8_000);
            isOfAnother(assertThrows(StreamingQueryException.class, () -> run(query(limited, checkpoint, batch -> {}))));
            assertEquals(List.of(0L), List.copyOf(batches.keySet()));
        }
    }

    @Test
    void aStreamThatWasMadeAgainWithFewerRecordsIsNotWaitedFor(@TempDir Path checkpoint) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            TestSpark.produce(broker.address(), "s", 0, 100);
            run(query(reader(broker), checkpoint, batch -> {}));
            sees(100);
            admin.deleteStream("s");
            admin.createStream("s", 1, 1);
            TestSpark.produce(broker.address(), "s", 5_000, 5_010);
            isOfAnother(assertThrows(StreamingQueryException.class, () -> run(query(reader(broker), checkpoint, batch -> {}))));
            sees(100);
        }
    }

    @Test
    void limitsHoldWhereRecordsWereDeleted(@TempDir Path checkpoint) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            DataStreamReader skips = reader(broker).option("maxRecordsPerTrigger", 10).option("failOnDataLoss", false);
            run(query(skips, checkpoint, batch -> {}));
            TestSpark.produce(broker.address(), "s", 0, 1_000);
            broker.run("", "stream", "trim", "s", "--ordinal", "100", "--streamlet", "0", "--lane", "0");
            run(query(skips, checkpoint, batch -> {}));
            batches.values().forEach(rows -> assertTrue(rows.size() < 200, rows.size() + " rows"));
            assertEquals(900, batches.values().stream().mapToInt(List::size).sum());
        }
    }

    /** Whether some micro-batch has records of a key in two lanes: then they may overtake each other. */
    private boolean mixesGenerations() {
        for (List<Row> rows : batches.values()) {
            Map<String, Integer> lanes = new HashMap<>();
            for (Row row : rows) {
                Integer before = lanes.put(row.getString(3), row.getInt(0));
                if (before != null && before != row.getInt(0)) {
                    return true;
                }
            }
        }
        return false;
    }

    @Test
    void keysKeepTheirOrderWhileLanesGrow(@TempDir Path home) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            for (int lanes : new int[] {1, 3, 6}) {
                if (lanes > 1) {
                    admin.growStream("s", lanes);
                }
                TestSpark.produce(broker.address(), "s", 0, 500);
            }
            run(query(reader(broker), home.resolve("ordered"), batch -> {}));
            assertEquals(3, batches.size());
            assertFalse(mixesGenerations());
            assertEquals(1_500, batches.values().stream().mapToInt(List::size).sum());
            batches.clear();
            run(query(reader(broker).option("growth", "unordered"), home.resolve("unordered"), batch -> {}));
            assertTrue(mixesGenerations());
            assertEquals(1_500, batches.values().stream().mapToInt(List::size).sum());
            Path refused = home.resolve("refused");
            run(query(reader(broker).option("growth", "refused"), refused, batch -> {}));
            admin.growStream("s", 7);
            TestSpark.produce(broker.address(), "s", 0, 500);
            Exception grown = assertThrows(Exception.class,
                    () -> run(query(reader(broker).option("growth", "refused"), refused, batch -> {})));
            assertTrue(grown.getMessage().contains("the option growth is refused"), grown.getMessage());
        }
    }

    @Test
    void offsetsOfEarlierVersionsAreRead() {
        String kept = "{\"version\":1,\"streams\":{\"s\":{\"id\":\"0a\",\"generations\":2,"
                + "\"lanes\":{\"0/0\":[3,7,4294967300],\"1/0\":[5]}}}}";
        KeraOffset offset = KeraOffset.parse(kept);
        assertEquals(kept, offset.json());
        assertEquals("[s:0/0 [3, 7), s:0/0 [7, 4294967300)]", offset.ranges(offset(3, 5)).toString());
        assertEquals("[s:0/0 [4, 4294967300)]", offset.ranges(offset(4, 5)).toString());
        Exception newer = assertThrows(IllegalArgumentException.class, () -> KeraOffset.parse("{\"version\":2}"));
        assertTrue(newer.getMessage().contains("use a newer one"), newer.getMessage());
    }

    private static KeraOffset offset(long first, long second) {
        return KeraOffset.parse("{\"version\":1,\"streams\":{\"s\":{\"id\":\"0a\",\"generations\":2,\"lanes\":{\"0/0\":["
                + first + "],\"1/0\":[" + second + "]}}}}");
    }
}
