package io.kera.spark;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.TestBroker;
import java.nio.file.Path;
import java.sql.Timestamp;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.DataFrameWriter;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.streaming.DataStreamWriter;
import org.apache.spark.sql.streaming.Trigger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Rows become records of a stream. */
@Timeout(240)
class WriteTest {
    private static Admin admin(TestBroker broker) {
        return new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
    }

    private static DataFrameWriter<Row> writer(TestBroker broker, Dataset<Row> rows) {
        return rows.write().format("kera").mode("append").option("bootstrap", broker.address()).option("stream", "t");
    }

    private static Dataset<Row> rows(String... columns) {
        return TestSpark.session().range(100).selectExpr(columns);
    }

    @Test
    void recordsHaveAllOfARow() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("t", 1, 1);
            writer(broker, TestSpark.session().sql("SELECT 'v' AS value, X'0102' AS key, timestamp_millis(1234) AS timestamp,"
                    + " array(struct('a' AS key, X'03' AS value), struct('b' AS key, CAST(NULL AS BINARY) AS value)) AS headers")).save();
            Dataset<Row> stored =
                    TestSpark.session().read().format("kera").option("bootstrap", broker.address()).option("stream", "t").load();
            Row row = stored.collectAsList().get(0);
            assertArrayEquals(new byte[] {1, 2}, (byte[]) row.get(0));
            assertArrayEquals(new byte[] {'v'}, (byte[]) row.get(1));
            assertEquals(new Timestamp(1_234), row.getTimestamp(6));
            List<Row> headers = row.getList(7);
            assertEquals(2, headers.size());
            assertEquals("a", headers.get(0).getString(0));
            assertArrayEquals(new byte[] {3}, (byte[]) headers.get(0).get(1));
            assertTrue(headers.get(1).isNullAt(1));
            // What is read may be written, and parts that a row leaves out are left out.
            writer(broker, stored.select("headers", "key", "timestamp", "value")).option("sink.compression", "zstd").save();
            long before = System.currentTimeMillis();
            writer(broker, TestSpark.session().sql("SELECT CAST(NULL AS STRING) AS value")).save();
            List<Row> all = stored.orderBy("ordinal").collectAsList();
            assertEquals(3, all.size());
            assertEquals(row.get(6), all.get(1).get(6));
            assertEquals(row.getList(7).toString().length(), all.get(1).getList(7).toString().length());
            assertTrue(all.get(2).isNullAt(0) && all.get(2).isNullAt(1));
            assertTrue(all.get(2).getTimestamp(6).getTime() >= before, all.get(2).toString());
        }
    }

    private static void refused(DataFrameWriter<Row> writer, String... words) {
        Throwable error = assertThrows(Exception.class, writer::save);
        StringBuilder told = new StringBuilder();
        for (Throwable each = error; each != null; each = each.getCause()) {
            told.append(each.getMessage()).append('\n');
        }
        for (String word : words) {
            assertTrue(told.indexOf(word) >= 0, word + " is not in " + told);
        }
    }

    @Test
    void whatDoesNotFitIsRefused() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("t", 1, 1);
            Map<String[], String> columns = Map.of(
                    new String[] {"id"}, "column id is no part of a record",
                    new String[] {"id AS value"}, "column value is of type BIGINT",
                    new String[] {"'a' AS key"}, "there is no column value",
                    new String[] {"'a' AS value", "'b' AS VALUE"}, "two columns VALUE",
                    new String[] {"'a' AS value", "1 AS timestamp"}, "column timestamp is of type INT",
                    new String[] {"'a' AS value", "array('a') AS headers"}, "column headers is of type ARRAY");
            columns.forEach((named, why) -> refused(writer(broker, rows(named)), "stream t", why));
            DataFrameWriter<Row> good = writer(broker, rows("'a' AS value"));
            refused(writer(broker, rows("'a' AS value")).option("sink.delivery-guaranty", "x"), "did you mean \"sink.delivery-guarantee\"");
            refused(writer(broker, rows("'a' AS value")).option("sink.delivery-guarantee", "none"), "use at-least-once or exactly-once");
            refused(writer(broker, rows("'a' AS value")).option("sink.delivery-guarantee", "exactly-once"), "sink.transactional-id-prefix");
            refused(writer(broker, rows("'a' AS value")).option("sink.compression", "best"), "sink.compression is \"best\"");
            refused(writer(broker, rows("'a' AS value")).option("sink.linger", "long"), "sink.linger is \"long\"");
            refused(writer(broker, rows("'a' AS value")).option("stream", "t,u"), "names 2 streams");
            refused(writer(broker, rows("'a' AS value")).option("stream", "nowhere"), "stream nowhere cannot be written to");
            assertEquals(0, admin.bounds("t").get(0).head());
            good.save();
            assertEquals(100, admin.bounds("t").get(0).head());
        }
    }

    @Test
    void aQueryWritesWhileTheBrokerIsKilled(@TempDir Path checkpoint) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 2);
            admin.createStream("t", 1, 2);
            TestSpark.produceKeyed(broker.address(), "s", 0, 2_000);
            var query = copy(broker, checkpoint).start();
            while (admin.bounds("t").stream().mapToLong(Admin.LaneBounds::head).sum() == 0) {
                Thread.onSpinWait();
            }
            broker.kill();
            broker.restart();
            query.awaitTermination();
            TestSpark.hasEachOnce(broker.address(), 2_000);
        }
    }

    /** Of s to t. */
    private static DataStreamWriter<Row> copy(TestBroker broker, Path checkpoint) {
        return to(broker, TestSpark.session().readStream().format("kera").option("bootstrap", broker.address())
                .option("stream", "s").option("maxRecordsPerTrigger", 300).load().selectExpr("key", "value"), checkpoint);
    }

    /** A query that writes to t. */
    static DataStreamWriter<Row> to(TestBroker broker, Dataset<Row> rows, Path checkpoint) {
        return rows.writeStream().format("kera").option("bootstrap", broker.address()).option("stream", "t")
                .option("checkpointLocation", checkpoint.toString()).trigger(Trigger.AvailableNow());
    }
}
