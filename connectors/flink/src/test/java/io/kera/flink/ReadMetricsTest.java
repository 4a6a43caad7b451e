package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.Generations;
import io.kera.client.KeraRecord;
import io.kera.client.TestBroker;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.connector.source.SourceEvent;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.source.reader.RecordsWithSplitIds;
import org.apache.flink.connector.base.source.reader.splitreader.SplitsAddition;
import org.apache.flink.connector.testutils.source.reader.TestingReaderContext;
import org.apache.flink.metrics.Gauge;
import org.apache.flink.metrics.groups.SourceReaderMetricGroup;
import org.apache.flink.metrics.testutils.MetricListener;
import org.apache.flink.runtime.metrics.groups.InternalSourceReaderMetricGroup;
import org.apache.flink.runtime.metrics.groups.UnregisteredMetricGroups;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class ReadMetricsTest {
    private final MetricListener listener = new MetricListener();
    private final SourceReaderMetricGroup group = InternalSourceReaderMetricGroup.mock(listener.getMetricGroup());

    private static KeraSourceBuilder<String> source(String address, Order order) {
        return KeraSource.<String>builder()
                .bootstrap(address)
                .streams("s")
                .order(order)
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()));
    }

    private KeraSplitReader reader(String address, Order order) throws Exception {
        SourceSettings settings = source(address, order).settings(new Configuration());
        return new KeraSplitReader(settings, "", new StreamIds(), new ReadMetrics(group));
    }

    private static String lines(int count) {
        return IntStream.range(0, count).mapToObj(n -> n + "\n").collect(Collectors.joining());
    }

    @Test
    void recordsThatWaitAreToldPerLaneAndBytesAreCounted() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            // More than one read takes.
            String long_ = "x".repeat(50_000) + "\n";
            broker.run(long_.repeat(60), "produce", "s");
            try (KeraSplitReader reader = reader(broker.address(), Order.LANE)) {
                reader.handleSplitsChanges(new SplitsAddition<>(List.of(
                        new LaneSplit("s", 0, 0, 0, 0, LaneSplit.UNBOUNDED, false))));
                Gauge<Long> pending = listener.<Long>getGauge("pendingRecords").orElseThrow();
                assertEquals(0, pending.getValue(), "nothing was read yet");
                int seen = count(reader.fetch());
                assertTrue(seen > 0 && seen < 60, "in one read: " + seen);
                assertEquals(60 - seen, pending.getValue());
                while (seen < 60) {
                    seen += count(reader.fetch());
                    assertEquals(60 - seen, pending.getValue());
                }
                broker.run(lines(3), "produce", "s");
                while (seen < 63) {
                    seen += count(reader.fetch());
                }
                assertEquals(0, pending.getValue());
            }
            assertEquals(0, listener.<Long>getGauge("pendingRecords").orElseThrow().getValue(), "it is closed");
        }
    }

    @Test
    void lanesOfABrokerShareAConnection() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 2, 3);
            broker.run(lines(600), "produce", "s", "--batch-size", "1KiB");
            try (KeraSplitReader reader = reader(broker.address(), Order.LANE)) {
                List<LaneSplit> splits = new ArrayList<>();
                for (int n = 0; n < 6; n++) {
                    splits.add(new LaneSplit("s", n % 2, n / 2, 0, 0, LaneSplit.UNBOUNDED, false));
                }
                reader.handleSplitsChanges(new SplitsAddition<>(splits));
                for (int seen = 0; seen < 600; ) {
                    seen += count(reader.fetch());
                }
                assertEquals(1, reader.connections());
                broker.kill();
                broker.restart();
                broker.run(lines(60), "produce", "s");
                for (int seen = 0; seen < 60; ) {
                    seen += count(reader.fetch());
                }
                assertEquals(1, reader.connections());
            }
        }
    }

    private static int count(RecordsWithSplitIds<KeraRecord> found) {
        int count = 0;
        while (found.nextSplit() != null) {
            while (found.nextRecordFromSplit() != null) {
                count++;
            }
        }
        return count;
    }

    @Test
    void bytesOfKeysAndValuesAreCounted() {
        SourceReaderMetricGroup counted = InternalSourceReaderMetricGroup.wrap(
                UnregisteredMetricGroups.createUnregisteredOperatorMetricGroup());
        ReadMetrics metrics = new ReadMetrics(counted);
        metrics.read(List.of(
                new KeraRecord(0, 0, new byte[3], new byte[5], List.of()), new KeraRecord(1, 0, null, new byte[2], List.of())));
        assertEquals(10, counted.getIOMetricGroup().getNumBytesInCounter().getCount());
    }

    /** The newest share that a reader was told; -1: none. */
    private static long told(DirectContext context, int reader) {
        long share = -1;
        for (SourceEvent event : context.getSentEvents().getOrDefault(reader, List.of())) {
            share = event instanceof WaitingRecords waits ? waits.records() : share;
        }
        return share;
    }

    private static void await(DirectContext context, long... shares) {
        long deadline = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        for (int reader = 0; reader < shares.length; ) {
            assertTrue(System.nanoTime() < deadline, "reader " + reader + " was told " + told(context, reader));
            context.runCalls();
            reader = told(context, reader) == shares[reader] ? reader + 1 : 0;
        }
    }

    @Test
    void recordsInNoRangeAreToldInShares() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 2);
            String long_ = "x".repeat(50_000) + "\n";
            broker.run(long_.repeat(61), "produce", "s", "--batch-size", "1KiB");
            SourceSettings settings = source(broker.address(), Order.NONE).settings(new Configuration());
            DirectContext context = new DirectContext(2);
            try (RangeEnumerator enumerator = new RangeEnumerator(context, settings, null);
                    KeraSplitReader reader = reader(broker.address(), Order.NONE)) {
                context.registerReader(0, "one");
                context.registerReader(1, "other");
                enumerator.start();
                await(context, 30, 31);
                enumerator.handleSplitRequest(0, "one");
                while (!context.getSplitAssignments().containsKey(0)) {
                    context.runCalls();
                }
                List<LaneSplit> splits = context.getSplitAssignments().get(0).getAssignedSplits();
                long range = splits.get(0).end() - splits.get(0).position();
                assertTrue(range > 0 && range < 61, range + " records");
                await(context, (61 - range) / 2, 61 - range - (61 - range) / 2);
                reader.handleSplitsChanges(new SplitsAddition<>(splits));
                Gauge<Long> pending = listener.<Long>getGauge("pendingRecords").orElseThrow();
                for (long seen = 0; seen < range; ) {
                    seen += count(reader.fetch());
                    assertEquals(range - seen, pending.getValue(), "of its own range");
                }
                enumerator.addSplitsBack(splits, 0);
                await(context, 30, 31);
                // A reader that is another one by now has been told nothing yet.
                for (Runnable begins : List.<Runnable>of(() -> enumerator.addSplitsBack(List.of(), 0), () -> enumerator.addReader(0))) {
                    context.getSentEvents().clear();
                    begins.run();
                    await(context, 30);
                    assertEquals(-1, told(context, 1), "it knows");
                }
            }
        }
    }

    @Test
    void aReaderTellsItsShare() throws Exception {
        TestingReaderContext context = new TestingReaderContext(new Configuration(), group);
        try (var reader = source("127.0.0.1:1", Order.NONE).build(new Configuration()).createReader(context)) {
            reader.start();
            reader.handleSourceEvents(new WaitingRecords(7));
            assertEquals(7, listener.<Long>getGauge("pendingRecords").orElseThrow().getValue());
        }
    }

    @Test
    void whatIsBehindAJumpOrAnEndWaitsForNobody() {
        Generations grown = new Generations(new byte[16], 1, List.of(new Generations.Generation(0, 2, Generations.Barrier.NONE, List.of())));
        LanePlan.LaneId first = new LanePlan.LaneId(0, 0);
        LanePlan.LaneId second = new LanePlan.LaneId(0, 1);
        RangePlan plan = RangePlan.begin("s", grown, new LanePlan.Bounds(Map.of(first, 5L, second, 7L), Map.of(second, 9L)), false);
        assertEquals(0, plan.waiting(Map.of()), "where they end is not known");
        assertEquals(3, plan.waiting(Map.of(first, 8L)));
        assertEquals(3, plan.waiting(Map.of(first, 8L + (1L << 32))));
        plan.cut(plan.uncut().get(0), 5, 7);
        assertEquals(3, plan.waiting(Map.of(first, 8L)), "a range that nobody has waits too");
        assertEquals(5, plan.take().position());
        assertEquals(1, plan.waiting(Map.of(first, 8L)));
        RangePlan ends = RangePlan.begin("s", grown, new LanePlan.Bounds(Map.of(first, 5L, second, 7L), Map.of(first, 6L, second, 9L)), true);
        assertEquals(3, ends.waiting(Map.of(first, 80L, second, 80L)));
    }
}
