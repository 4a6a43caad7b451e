package io.kera.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.TestBroker;
import io.kera.client.TransactionHandle;
import io.kera.client.Transactions;
import io.kera.spark.SinkLog.Decision;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.streaming.DataStreamWriter;
import org.apache.spark.sql.streaming.StreamingQueryException;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** What is written exactly once is there once, wherever a run ends. */
@Timeout(240)
class ExactlyOnceTest {
    private static final int TASKS = 3;
    private static final int ROWS = 40;
    private static final StructType ROW =
            new StructType().add("key", DataTypes.StringType).add("value", DataTypes.StringType);

    private TestBroker broker;
    private Admin admin;
    private Transactions transactions;
    @TempDir
    private Path home;

    @BeforeEach
    void start() throws IOException {
        broker = TestBroker.start();
        admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
        transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT);
        admin.createStream("s", 1, 2);
        admin.createStream("t", 1, 2);
        TestSpark.session();
    }

    @AfterEach
    void stop() throws IOException {
        transactions.close();
        admin.close();
        broker.close();
    }

    private SinkSettings settings() {
        return new KeraOptions(new CaseInsensitiveStringMap(Map.of("bootstrap", broker.address(), "stream", "t"))).sink(ROW);
    }

    private ExactlyOnceStream run() {
        return new ExactlyOnceStream(settings(), "q/", new SinkLog(home.toString()));
    }

    /** The tasks of a micro-batch, as executors run them: each writes its keys, and is prepared. */
    private static WriterCommitMessage[] tasks(StreamingDataWriterFactory factory, int epoch) throws IOException {
        WriterCommitMessage[] messages = new WriterCommitMessage[TASKS];
        for (int task = 0; task < TASKS; task++) {
            messages[task] = task(factory, epoch, task, task);
        }
        return messages;
    }

    private static WriterCommitMessage task(StreamingDataWriterFactory factory, int epoch, int partition, int attempt)
            throws IOException {
        try (DataWriter<InternalRow> writer = factory.createWriter(partition, attempt, epoch)) {
            for (int n = partition; n < ROWS; n += TASKS) {
                int value = epoch * ROWS + n;
                writer.write(new GenericInternalRow(new Object[] {
                    UTF8String.fromString("key " + partition), UTF8String.fromString(String.valueOf(value))}));
            }
            return writer.commit();
        }
    }

    /** A run of a micro-batch that comes to its end. */
    private void whole(int epoch) throws IOException {
        ExactlyOnceStream run = run();
        run.commit(epoch, tasks(run.createStreamingWriterFactory(null), epoch));
    }

    private void has(int epochs) throws Exception {
        assertEquals(List.of(), transactions.open("q/"));
        TestSpark.hasEachOnce(broker.address(), epochs * ROWS);
    }

    @Test
    void theDriverIsGoneBeforeItDecides() throws Exception {
        whole(0);
        tasks(run().createStreamingWriterFactory(null), 1);
        assertEquals(TASKS, transactions.open("q/").size());
        whole(1);
        has(2);
    }

    @Test
    void theDriverIsGoneAmidTheCommits() throws Exception {
        whole(0);
        for (int committed = 0; committed <= TASKS; committed++) {
            int epoch = committed + 1;
            ExactlyOnceStream run = run();
            List<TransactionHandle> handles =
                    SinkTransactions.prepared(tasks(run.createStreamingWriterFactory(null), epoch));
            assertEquals(TASKS, handles.size());
            SinkLog log = new SinkLog(home.toString());
            log.begin();
            log.decide(new Decision(epoch, handles));
            for (TransactionHandle handle : handles.subList(0, committed)) {
                assertTrue(transactions.commit(handle));
            }
            if (committed == 1) {
                broker.kill();
                broker.restart();
            }
            whole(epoch);
            has(epoch + 1);
        }
    }

    @Test
    void sparkDoesNotKnowThatAllIsCommitted() throws Exception {
        whole(0);
        whole(1);
        whole(1);
        // A checkpoint that somebody has set back.
        whole(0);
        whole(2);
        has(3);
        try (Stream<Path> files = Files.list(home)) {
            assertEquals(1, files.filter(file -> !file.getFileName().toString().startsWith(".")).count());
        }
    }

    @Test
    void attemptsThatWereLostAreAborted() throws Exception {
        ExactlyOnceStream run = run();
        StreamingDataWriterFactory factory = run.createStreamingWriterFactory(null);
        // Its executor is gone before the driver has heard of it.
        task(factory, 0, 1, 100);
        run.commit(0, tasks(factory, 0));
        has(1);
        // One that fails.
        ExactlyOnceStream failed = run();
        tasks(failed.createStreamingWriterFactory(null), 1);
        failed.abort(1, new WriterCommitMessage[TASKS]);
        has(1);
        // One that may have decided: only the next run knows.
        ExactlyOnceStream late = run();
        WriterCommitMessage[] messages = tasks(late.createStreamingWriterFactory(null), 1);
        SinkLog log = new SinkLog(home.toString());
        log.begin();
        assertThrows(Exception.class, () -> late.commit(1, messages));
        late.abort(1, messages);
        assertEquals(TASKS, transactions.open("q/").size());
        whole(1);
        has(2);
    }

    @Test
    void ofTwoDriversOneGoesOn() throws Exception {
        whole(0);
        ExactlyOnceStream first = run();
        WriterCommitMessage[] messages = tasks(first.createStreamingWriterFactory(null), 1);
        ExactlyOnceStream second = run();
        WriterCommitMessage[] others = tasks(second.createStreamingWriterFactory(null), 1);
        Exception superseded = assertThrows(Exception.class, () -> first.commit(1, messages));
        assertTrue(superseded.getMessage().contains("another run of the query"), superseded.getMessage());
        first.abort(1, messages);
        second.commit(1, others);
        has(2);
    }

    @Test
    void entriesOfEarlierVersionsAreRead() {
        TransactionHandle handle = new TransactionHandle("q/r/0/7", 4711, (short) 2, 9);
        Decision decision = new Decision(12, List.of(handle));
        String kept = "v1\nepoch 12\n0a07712f722f302f3710e724180220" + "09\nend\n";
        assertEquals(kept, decision.text());
        assertEquals(decision, Decision.parse(kept));
        assertEquals(Decision.NONE, Decision.parse(Decision.NONE.text()));
        assertThrows(IllegalArgumentException.class, () -> Decision.parse(kept.substring(0, kept.length() - 4)));
        Exception newer = assertThrows(IllegalArgumentException.class, () -> Decision.parse("v2\n"));
        assertTrue(newer.getMessage().contains("use a newer one"), newer.getMessage());
    }

    @Test
    void eachRecordPassesOnceWhateverFails() throws Exception {
        Path checkpoint = home.resolve("checkpoint");
        TestSpark.produceKeyed(broker.address(), "s", 0, 2_000);
        FAIL.set(900);
        TestSpark.session().udf().register("failing", (UDF1<byte[], byte[]>) ExactlyOnceTest::failing, DataTypes.BinaryType);
        assertThrows(StreamingQueryException.class, () -> query(checkpoint).start().awaitTermination());
        assertEquals(-1, FAIL.get());
        var second = query(checkpoint).start();
        while (admin.bounds("t").stream().mapToLong(Admin.LaneBounds::head).sum() < 1_000) {
            Thread.onSpinWait();
        }
        broker.kill();
        broker.restart();
        second.awaitTermination();
        TestSpark.hasEachOnce(broker.address(), 2_000);
        // As if the driver had been killed before Spark logged its last micro-batch.
        List<Path> logged = new ArrayList<>();
        try (Stream<Path> files = Files.list(checkpoint.resolve("commits"))) {
            files.filter(file -> file.getFileName().toString().matches("\\d+")).forEach(logged::add);
        }
        logged.sort((a, b) -> Integer.parseInt(b.getFileName().toString()) - Integer.parseInt(a.getFileName().toString()));
        assertTrue(logged.size() >= 6, logged.toString());
        Files.delete(logged.get(0));
        Files.deleteIfExists(logged.get(0).resolveSibling("." + logged.get(0).getFileName() + ".crc"));
        TestSpark.produceKeyed(broker.address(), "s", 2_000, 2_500);
        query(checkpoint).start().awaitTermination();
        TestSpark.hasEachOnce(broker.address(), 2_500);
        assertEquals(List.of(), transactions.open("spark"));
    }

    private static final AtomicInteger FAIL = new AtomicInteger(-1);

    private static byte[] failing(byte[] value) {
        if (FAIL.get() >= 0 && FAIL.getAndDecrement() == 0) {
            throw new IllegalStateException("a failure of the test");
        }
        return value;
    }

    private DataStreamWriter<Row> query(Path checkpoint) {
        Dataset<Row> rows = TestSpark.session().readStream().format("kera").option("bootstrap", broker.address())
                .option("stream", "s").option("maxRecordsPerTrigger", 300).load().selectExpr("key", "failing(value) AS value");
        return WriteTest.to(broker, rows, checkpoint).option("sink.delivery-guarantee", "exactly-once");
    }

    @Test
    void aBatchIsThereOnceOrNotAtAll() throws Exception {
        TestSpark.produceKeyed(broker.address(), "s", 0, 1_000);
        Dataset<Row> rows = TestSpark.session().read().format("kera").option("bootstrap", broker.address()).option("stream", "s").load();
        FAIL.set(700);
        TestSpark.session().udf().register("failing", (UDF1<byte[], byte[]>) ExactlyOnceTest::failing, DataTypes.BinaryType);
        assertThrows(Exception.class, () -> write(rows.selectExpr("key", "failing(value) AS value")));
        assertEquals(List.of(), transactions.open("copy"));
        // What a driver left that is gone.
        var left = new ExactlyOnceBatch(settings(), "copy-batch/").createBatchWriterFactory(null).createWriter(0, 0);
        left.write(new GenericInternalRow(new Object[] {null, UTF8String.fromString("0")}));
        left.commit();
        left.close();
        assertEquals(1, transactions.open("copy").size());
        write(rows.select("key", "value"));
        assertEquals(List.of(), transactions.open("copy"));
        TestSpark.hasEachOnce(broker.address(), 1_000);
    }

    private void write(Dataset<Row> rows) {
        rows.write().format("kera").mode("append").option("bootstrap", broker.address()).option("stream", "t")
                .option("sink.delivery-guarantee", "exactly-once").option("sink.transactional-id-prefix", "copy").save();
    }

    @Test
    void aQueryNeedsACheckpointOfItsOwn() {
        TestSpark.session().conf().set("spark.sql.streaming.checkpointLocation", home.resolve("all").toString());
        try {
            Dataset<Row> rows = TestSpark.session().readStream().format("kera").option("bootstrap", broker.address())
                    .option("stream", "s").load().select("value");
            TestSpark.produceKeyed(broker.address(), "s", 0, 1);
            Exception refused = assertThrows(Exception.class, () -> rows.writeStream().format("kera")
                    .option("bootstrap", broker.address()).option("stream", "t")
                    .option("sink.delivery-guarantee", "exactly-once").start().awaitTermination());
            assertTrue(refused.getMessage().contains("checkpointLocation") && refused.getMessage().contains("stream t"),
                    refused.getMessage());
        } catch (IOException error) {
            throw new AssertionError(error);
        } finally {
            TestSpark.session().conf().unset("spark.sql.streaming.checkpointLocation");
        }
    }
}
