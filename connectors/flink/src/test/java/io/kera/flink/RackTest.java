package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.StreamInfo;
import io.kera.client.TestCluster;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.IntStream;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.testutils.source.reader.TestingReaderContext;
import org.apache.flink.connector.testutils.source.reader.TestingReaderOutput;
import org.apache.flink.metrics.Counter;
import org.apache.flink.metrics.Metric;
import org.apache.flink.metrics.MetricConfig;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.metrics.reporter.MetricReporter;
import org.apache.flink.metrics.reporter.MetricReporterFactory;
import org.apache.flink.metrics.testutils.MetricListener;
import org.apache.flink.runtime.metrics.groups.InternalSourceReaderMetricGroup;
import org.apache.flink.runtime.testutils.MiniClusterResourceConfiguration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.test.junit5.MiniClusterExtension;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Sources read closed groups from brokers in their rack. */
@Timeout(120)
class RackTest {
    private static final int RECORDS = 4_000;
    private static final String METRIC = "numReplicaBytesIn";
    private static TestCluster cluster;
    private static Admin admin;
    private static StreamInfo stream;

    /** Has the counters of sources. */
    public static final class Reporter implements MetricReporter, MetricReporterFactory {
        private static final List<Counter> COUNTERS = new CopyOnWriteArrayList<>();

        @Override
        public MetricReporter createMetricReporter(java.util.Properties properties) {
            return this;
        }

        @Override
        public void open(MetricConfig config) {}

        @Override
        public void close() {}

        @Override
        public void notifyOfAddedMetric(Metric metric, String name, MetricGroup group) {
            if (name.equals(METRIC)) {
                COUNTERS.add((Counter) metric);
            }
        }

        @Override
        public void notifyOfRemovedMetric(Metric metric, String name, MetricGroup group) {}
    }

    private static Configuration reporting() {
        Configuration config = new Configuration();
        config.setString("metrics.reporter.rack.factory.class", Reporter.class.getName());
        return config;
    }

    @RegisterExtension
    private static final MiniClusterExtension FLINK = new MiniClusterExtension(new MiniClusterResourceConfiguration.Builder()
            .setConfiguration(reporting())
            .setNumberTaskManagers(1)
            .setNumberSlotsPerTaskManager(1)
            .build());

    @BeforeAll
    static void start() throws Exception {
        cluster = TestCluster.inRacks(3);
        admin = new Admin(cluster.addresses(), ConnectOptions.DEFAULT);
        cluster.createStream("s", "--streamlets", "1", "--lanes", "1", "--replicas", "3", "--min-insync-replicas", "3",
                "--segment-size", "64KiB", "--segments-per-group", "2");
        stream = admin.stream("s");
        ProducerOptions options = ProducerOptions.to(cluster.addresses().toArray(new String[0])).withBatchSize(4 << 10);
        try (Producer producer = new Producer("s", options)) {
            for (int n = 0; n < RECORDS; n++) {
                producer.append(null, value(n).getBytes(StandardCharsets.UTF_8));
            }
        }
    }

    @AfterAll
    static void stop() throws Exception {
        if (cluster != null) {
            admin.close();
            cluster.close();
        }
    }

    private static String value(int number) {
        return String.format("%08d %s", number, "v".repeat(90));
    }

    private static List<String> values() {
        return IntStream.range(0, RECORDS).mapToObj(RackTest::value).toList();
    }

    private static String another() {
        return cluster.addresses().stream().filter(each -> !each.equals(stream.owner(0))).findFirst().orElseThrow();
    }

    private static KeraSource<String> source(Order order, String rack) {
        KeraSourceBuilder<String> builder = KeraSource.<String>builder()
                .bootstrap(cluster.addresses().toArray(new String[0]))
                .streams("s")
                .order(order)
                .bounded()
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()));
        if (rack != null) {
            builder.rack(rack);
        }
        return builder.build(new Configuration());
    }

    private static LaneSplit split(Order order) {
        return order == Order.NONE
                ? LaneSplit.range("s", 0, 0, 0, RECORDS)
                : new LaneSplit("s", 0, 0, 0, 0, RECORDS, false);
    }

    /** What a reader in a TaskManager of a rack reads, and how many bytes of that from replicas. */
    private static long read(Order order, String rack, String rackOfTaskManager) throws Exception {
        Configuration manager = new Configuration();
        if (rackOfTaskManager != null) {
            manager.set(KeraSource.RACK, rackOfTaskManager);
        }
        MetricListener listener = new MetricListener();
        TestingReaderContext context =
                new TestingReaderContext(manager, InternalSourceReaderMetricGroup.mock(listener.getMetricGroup()));
        TestingReaderOutput<String> output = new TestingReaderOutput<>();
        try (var reader = source(order, rack).createReader(context)) {
            reader.start();
            reader.addSplits(List.of(split(order)));
            while (output.getEmittedRecords().size() < RECORDS) {
                reader.isAvailable().get();
                reader.pollNext(output);
            }
        }
        assertEquals(values(), output.getEmittedRecords());
        return listener.getCounter(METRIC).orElseThrow().getCount();
    }

    @ParameterizedTest
    @EnumSource(value = Order.class, names = {"LANE", "NONE"})
    void replicasInTheRackAreRead(Order order) throws Exception {
        String near = cluster.rack(another());
        String far = cluster.rack(stream.owner(0));
        // Groups may still be on their way to the state in which all hold them.
        while (read(order, near, null) < 3 * (64 << 10)) {
            Thread.onSpinWait();
        }
        assertTrue(read(order, null, near) > 0, "the rack is that of the TaskManager");
        assertEquals(0, read(order, far, near), "the source's own counts");
        assertEquals(0, read(order, null, null), "there is no rack");
    }

    private static long query(String options) throws Exception {
        TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inBatchMode());
        flink.executeSql("CREATE TABLE s (v STRING) WITH ('connector' = 'kera', 'bootstrap' = '"
                + String.join(";", cluster.addresses()) + "', 'stream' = 's', 'format' = 'raw', 'scan.bounded.mode' = 'latest'"
                + options + ")");
        Reporter.COUNTERS.clear();
        List<String> found = new ArrayList<>();
        try (CloseableIterator<Row> rows = flink.executeSql("SELECT v FROM s").collect()) {
            rows.forEachRemaining(row -> found.add((String) row.getField(0)));
        }
        assertEquals(values(), found);
        assertEquals(1, Reporter.COUNTERS.size());
        return Reporter.COUNTERS.get(0).getCount();
    }

    @Test
    void aTableNamesItsRack() throws Exception {
        while (query(", 'scan.rack' = '" + cluster.rack(another()) + "'") == 0) {
            Thread.onSpinWait();
        }
        assertEquals(0, query(""));
    }
}
