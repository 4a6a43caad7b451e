package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.KeraRecord;
import io.kera.client.TestBroker;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.source.reader.RecordsWithSplitIds;
import org.apache.flink.connector.base.source.reader.splitreader.SplitsAddition;
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

    private KeraSplitReader reader(String address, Order order) throws Exception {
        SourceSettings settings = KeraSource.<String>builder()
                .bootstrap(address)
                .streams("s")
                .order(order)
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .settings(new Configuration());
        return new KeraSplitReader(settings, "", new StreamIds(), new ReadMetrics(group, order));
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
        ReadMetrics metrics = new ReadMetrics(counted, Order.LANE);
        metrics.read(List.of(
                new KeraRecord(0, 0, new byte[3], new byte[5], List.of()), new KeraRecord(1, 0, null, new byte[2], List.of())));
        assertEquals(10, counted.getIOMetricGroup().getNumBytesInCounter().getCount());
    }

    @Test
    void aSharedLaneTellsNoRecordsThatWait() throws Exception {
        reader("127.0.0.1:1", Order.NONE).close();
        assertTrue(listener.getGauge("pendingRecords").isEmpty());
    }
}
