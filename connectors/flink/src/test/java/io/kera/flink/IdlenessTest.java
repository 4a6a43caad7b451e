package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.KeraRecord;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.TestBroker;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.SourceOutput;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.connector.base.source.reader.RecordsBySplits;
import org.apache.flink.connector.base.source.reader.RecordsWithSplitIds;
import org.apache.flink.connector.base.source.reader.splitreader.SplitReader;
import org.apache.flink.connector.base.source.reader.splitreader.SplitsChange;
import org.apache.flink.connector.testutils.source.reader.TestingReaderContext;
import org.apache.flink.runtime.testutils.MiniClusterResourceConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.test.junit5.MiniClusterExtension;
import org.apache.flink.util.CloseableIterator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * Readers that hold up the watermarks of others, and those that do not. Interrupts do not end a wait for results: the time is
 * kept by another thread.
 */
@Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class IdlenessTest {
    private static final LaneSplit SPLIT = new LaneSplit("s", 0, 0, 0, 0, LaneSplit.UNBOUNDED, false);

    @RegisterExtension
    private static final MiniClusterExtension FLINK = new MiniClusterExtension(new MiniClusterResourceConfiguration.Builder()
            .setNumberTaskManagers(1)
            .setNumberSlotsPerTaskManager(4)
            .build());

    /** Has nothing to read. */
    private static final class Empty implements SplitReader<KeraRecord, LaneSplit> {
        private boolean awake;

        @Override
        public synchronized RecordsWithSplitIds<KeraRecord> fetch() {
            try {
                while (!awake) {
                    wait();
                }
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            awake = false;
            return new RecordsBySplits.Builder<KeraRecord>().build();
        }

        @Override
        public void handleSplitsChanges(SplitsChange<LaneSplit> change) {}

        @Override
        public synchronized void wakeUp() {
            awake = true;
            notifyAll();
        }

        @Override
        public void close() {}
    }

    /** What a reader tells of watermarks. */
    private static final class Recorded implements ReaderOutput<String> {
        private final List<String> told = new ArrayList<>();
        private final String name;

        Recorded(String name) {
            this.name = name;
        }

        @Override
        public void collect(String value) {}

        @Override
        public void collect(String value, long timestamp) {}

        @Override
        public void emitWatermark(Watermark watermark) {
            told.add(name + " is at " + (watermark.getTimestamp() - Long.MIN_VALUE));
        }

        @Override
        public void markIdle() {
            told.add(name + " is idle");
        }

        @Override
        public void markActive() {
            told.add(name + " is active");
        }

        @Override
        public SourceOutput<String> createOutputForSplit(String id) {
            Recorded output = new Recorded(id);
            return new Forwarding(output, told);
        }

        @Override
        public void releaseOutputForSplit(String id) {}
    }

    private record Forwarding(Recorded split, List<String> told) implements SourceOutput<String> {
        @Override
        public void collect(String value) {}

        @Override
        public void collect(String value, long timestamp) {}

        @Override
        public void emitWatermark(Watermark watermark) {
            split.emitWatermark(watermark);
            told.addAll(split.told);
        }

        @Override
        public void markIdle() {
            split.markIdle();
            told.addAll(split.told);
        }

        @Override
        public void markActive() {
            split.markActive();
            told.addAll(split.told);
        }
    }

    private static KeraSourceReader<String> reader(Order order) {
        SourceSettings settings = KeraSource.<String>builder()
                .streams("s")
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .settings(new Configuration());
        KeraSourceReader<String> reader = new KeraSourceReader<>(
                Empty::new, KeraDeserializer.values(new SimpleStringSchema()), new TestingReaderContext(),
                new PositionCommitter(settings), new StreamIds(), order, false,
                new ReadMetrics(new TestingReaderContext().metricGroup()));
        reader.start();
        return reader;
    }

    @Test
    void aReaderWithoutSplitsIsIdleUntilItHasOne() throws Exception {
        Recorded output = new Recorded("reader");
        try (KeraSourceReader<String> reader = reader(Order.LANE)) {
            reader.pollNext(output);
            assertEquals(List.of(), output.told, "it may yet get one");
            reader.handleSourceEvents(new WithoutSplits());
            assertTrue(reader.isAvailable().isDone(), "it is called");
            reader.pollNext(output);
            reader.pollNext(output);
            assertEquals(List.of("reader is idle"), output.told);
            reader.addSplits(List.of(SPLIT));
            assertTrue(reader.isAvailable().isDone(), "it is called");
            reader.pollNext(output);
            reader.pollNext(output);
            assertEquals(List.of("reader is idle", "s:0/0@0 is at 1"), output.told);
        }
    }

    @Test
    void aReaderThatWaitsAtABarrierIsNotIdle() throws Exception {
        Recorded output = new Recorded("reader");
        try (KeraSourceReader<String> reader = reader(Order.LANE)) {
            // As it is restored: what comes next is behind a barrier.
            reader.addSplits(List.of(SPLIT.asFinished()));
            reader.handleSourceEvents(new WithoutSplits());
            reader.pollNext(output);
            assertEquals(List.of(), output.told);
        }
        try (KeraSourceReader<String> reader = reader(Order.LANE)) {
            reader.handleSourceEvents(new WithoutSplits());
            reader.addSplits(List.of(SPLIT));
            reader.pollNext(output);
            assertEquals(List.of(), output.told, "it has a split before it is idle");
        }
    }

    @Test
    void aReaderIsIdleWhileItHasNoRange() throws Exception {
        Recorded output = new Recorded("reader");
        try (KeraSourceReader<String> reader = reader(Order.NONE)) {
            reader.handleSourceEvents(new WithoutSplits());
            reader.pollNext(output);
            List<String> idle = List.of("no range is idle", "reader is idle");
            assertEquals(idle, output.told);
            reader.addSplits(List.of(LaneSplit.range("s", 0, 0, 0, 7)));
            assertTrue(reader.isAvailable().isDone(), "it is called");
            reader.handleSourceEvents(new WithoutSplits());
            reader.pollNext(output);
            reader.pollNext(output);
            assertEquals(List.of("no range is idle", "reader is idle", "reader is active"), output.told, "it has a range");
        }
    }

    private static void produce(TestBroker broker, int from, int to) throws Exception {
        try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()).withBatchSize(1 << 16))) {
            for (int n = from; n < to; n++) {
                producer.append(null, "x".getBytes(StandardCharsets.UTF_8), List.of(), 1_000 * n);
            }
        }
    }

    /**
     * Four readers, one lane, and a strategy that knows nothing of idleness. What is read as a range is read long before
     * watermarks are emitted.
     */
    @ParameterizedTest
    @EnumSource(value = Order.class, names = {"LANE", "NONE"})
    void windowsEndWithMoreReadersThanLanes(Order order) throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            produce(broker, 0, 100);
            Configuration config = new Configuration();
            config.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofSeconds(1));
            if (order == Order.NONE) {
                config.set(PipelineOptions.AUTO_WATERMARK_INTERVAL, Duration.ofHours(1));
            }
            StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(config);
            env.setParallelism(4);
            KeraSource<String> source = KeraSource.<String>builder()
                    .bootstrap(broker.address())
                    .streams("s")
                    .order(order)
                    .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                    .build(config);
            try (CloseableIterator<String> windows = env
                    .fromSource(source, WatermarkStrategy.forMonotonousTimestamps(), "s")
                    .keyBy(value -> value)
                    .window(TumblingEventTimeWindows.of(Duration.ofSeconds(10)))
                    .reduce((one, other) -> one + other)
                    .executeAndCollect()) {
                for (int window = 0; window < 9; window++) {
                    assertEquals("x".repeat(10), windows.next());
                }
                // All readers wait by now; whichever reads goes on with event time.
                produce(broker, 100, 200);
                for (int window = 9; window < 19; window++) {
                    assertEquals("x".repeat(10), windows.next());
                }
            }
        }
    }
}
