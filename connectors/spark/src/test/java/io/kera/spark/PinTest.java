package io.kera.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.LanePosition;
import io.kera.client.Pin;
import io.kera.client.Pinning;
import io.kera.client.TestBroker;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.spark.api.java.function.MapFunction;
import org.apache.spark.api.java.function.VoidFunction2;
import org.apache.spark.sql.DataFrameReader;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.streaming.StreamingQueryException;
import org.apache.spark.sql.streaming.Trigger;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** What a query has still to read is pinned. */
@Timeout(240)
class PinTest {
    private static Admin admin(TestBroker broker) {
        return new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
    }

    private static void awaitPins(Admin admin, Set<List<LanePosition>> expected) throws Exception {
        Set<List<LanePosition>> found = Set.of();
        for (int n = 0; n < 6_000; n++) {
            found = admin.pins("s").pins().stream().map(Pin::positions).collect(Collectors.toSet());
            if (found.equals(expected)) {
                return;
            }
            Thread.sleep(10);
        }
        throw new AssertionError("not within a minute: " + expected + ", there are " + found);
    }

    private static DataFrameReader pinned(TestBroker broker) {
        return TestSpark.session().read().format("kera").option("bootstrap", broker.address()).option("stream", "s")
                .option("pin", "report").option("pinPolicy", "wait");
    }

    /** The pins that there are while records are read. */
    private static Set<String> pinsWhileReading(TestBroker broker, DataFrameReader reader) {
        String address = broker.address();
        MapFunction<Row, String> look = row -> {
            try (Admin admin = new Admin(List.of(address), ConnectOptions.DEFAULT)) {
                return admin.pins("s").pins().stream().map(pin -> pin.name() + " " + pin.policy() + " " + pin.positions())
                        .collect(Collectors.joining(","));
            }
        };
        return Set.copyOf(reader.load().where("ordinal % 50 = 0").map(look, Encoders.STRING()).collectAsList());
    }

    @Test
    void aBatchReadIsPinnedWhileItRuns() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 2);
            TestSpark.produce(broker.address(), "s", 0, 300);
            broker.run("", "stream", "trim", "s", "--streamlet", "0", "--lane", "1", "--ordinal", "20");
            for (int round = 0; round < 2; round++) {
                Set<String> seen = pinsWhileReading(broker, pinned(broker).option("pinRequired", true));
                assertEquals(1, seen.size(), seen.toString());
                String pin = seen.iterator().next();
                String expected = " WAIT " + List.of(new LanePosition(0, 0, 0), new LanePosition(0, 1, 20));
                assertTrue(pin.matches("report-[0-9a-f]{8}" + Pattern.quote(expected)), pin);
                // Spark tells of the end later.
                awaitPins(admin, Set.of());
            }
            // One that is not run is not pinned, and one that cannot be is not read.
            pinned(broker).load().queryExecution().executedPlan();
            assertEquals(List.of(), admin.pins("s").pins());
            DataFrameReader tooLong = pinned(broker).option("pin", "x".repeat(300));
            assertEquals(280, tooLong.load().count());
            tooLong.option("pinRequired", true);
            Exception refused = assertThrows(Exception.class, () -> tooLong.load().count());
            assertTrue(refused.toString().contains("does not have the positions of the read"), refused.toString());
        }
    }

    /** Where the pin of a lane stands; -1: there is none yet. */
    private static long position(Admin admin, int lane) throws IOException {
        return admin.pins("s").pins().stream().flatMap(pin -> pin.positions().stream()).filter(each -> each.lane() == lane)
                .mapToLong(LanePosition::ordinal).findAny().orElse(-1);
    }

    /** Each micro-batch finds the pin where itself begins: what came before is complete, and it is not yet. */
    private static void run(TestBroker broker, Path checkpoint, boolean fails, List<Long> batches) throws Exception {
        VoidFunction2<Dataset<Row>, Long> take = (rows, batch) -> {
            try (Admin admin = admin(broker)) {
                Map<Integer, Long> begins = new HashMap<>();
                rows.select("lane", "ordinal").collectAsList().forEach(row -> begins.merge(row.getInt(0), row.getLong(1), Math::min));
                for (Map.Entry<Integer, Long> lane : begins.entrySet()) {
                    // It is moved beside the query.
                    for (int n = 0; n < 3_000 && position(admin, lane.getKey()) < lane.getValue(); n++) {
                        Thread.sleep(10);
                    }
                    assertEquals(lane.getValue(), position(admin, lane.getKey()), "batch " + batch + " reads lane " + lane.getKey());
                }
            }
            batches.add(batch);
            if (fails && batch == 1) {
                throw new IllegalStateException("a failure of the test");
            }
        };
        TestSpark.session().readStream().format("kera").option("bootstrap", broker.address()).option("stream", "s")
                .option("pin", "query").option("pinMaxAge", "3h").option("pinRequired", true).option("maxRecordsPerTrigger", 50).load()
                .writeStream().foreachBatch(take).option("checkpointLocation", checkpoint.toString())
                .trigger(Trigger.AvailableNow()).start().awaitTermination();
    }

    private static Set<List<LanePosition>> ends(Admin admin) throws IOException {
        return Set.of(admin.bounds("s").stream().map(lane -> new LanePosition(lane.streamlet(), lane.lane(), lane.head())).toList());
    }

    @Test
    void aQueryThatGoesOnMovesItsPinBehindWhatIsComplete(@TempDir Path checkpoint) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 2);
            TestSpark.produce(broker.address(), "s", 0, 200);
            List<Long> batches = new ArrayList<>();
            StreamingQueryException failed =
                    assertThrows(StreamingQueryException.class, () -> run(broker, checkpoint, true, batches));
            assertTrue(failed.toString().contains("a failure of the test"), failed.toString());
            // It outlives the query, and has what is repeated.
            assertEquals(1, admin.pins("s").pins().size());
            run(broker, checkpoint, false, batches);
            assertTrue(batches.size() > 3, batches.toString());
            run(broker, checkpoint, false, batches);
            awaitPins(admin, ends(admin));
            Pin pin = admin.pins("s").pins().get(0);
            assertEquals(List.of("query", "kera", Pin.Policy.WARN, Duration.ofHours(3)),
                    List.of(pin.name(), pin.job(), pin.policy(), pin.maxAge()));
            // Records are gone that the query has still to read.
            TestSpark.produce(broker.address(), "s", 200, 300);
            broker.run("", "stream", "trim", "s", "--everything", "--yes");
            StreamingQueryException lost = assertThrows(StreamingQueryException.class, () -> run(broker, checkpoint, false, batches));
            assertTrue(lost.getMessage().contains("deleted") || lost.getMessage().contains("lost records"), lost.getMessage());
        }
    }

    private static Optional<Pinning> pinning(String... words) {
        Map<String, String> given = new HashMap<>();
        for (int n = 0; n < words.length; n += 2) {
            given.put(words[n], words[n + 1]);
        }
        return new KeraOptions(new CaseInsensitiveStringMap(given)).pinning();
    }

    @Test
    void optionsSayHow() {
        assertEquals(Optional.empty(), pinning());
        assertEquals(Optional.of(Pinning.named("p").waiting().maxAge(Duration.ofMinutes(5)).maxBytes(7).required()),
                pinning("pin", "p", "pinPolicy", "Wait", "pinMaxAge", "5min", "pinMaxBytes", "7", "pinRequired", "true"));
        String[][] wrong = {{"pinPolicy", "wait"}, {"pin", "two words"}, {"pin", "p", "pinPolicy", "keep"}, {"pin", "p", "pinMaxBytes", "0"}};
        for (String[] words : wrong) {
            assertThrows(IllegalArgumentException.class, () -> pinning(words), () -> List.of(words).toString());
        }
    }
}
