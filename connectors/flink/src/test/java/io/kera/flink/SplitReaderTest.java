package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.FakeBroker;
import io.kera.client.KeraRecord;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.Slices;
import io.kera.client.StreamInfo;
import io.kera.client.TestBroker;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.LongStream;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.source.reader.RecordsWithSplitIds;
import org.apache.flink.connector.base.source.reader.splitreader.SplitsAddition;
import org.apache.flink.metrics.Gauge;
import org.apache.flink.metrics.testutils.MetricListener;
import org.apache.flink.runtime.metrics.groups.InternalSourceReaderMetricGroup;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What a reader reads of its lanes, and what it leaves. */
@Timeout(60)
class SplitReaderTest {
    private final MetricListener listener = new MetricListener();

    private static KeraSourceBuilder<String> source(String address) {
        return KeraSource.<String>builder()
                .bootstrap(address)
                .streams("s")
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()));
    }

    private KeraSplitReader reader(KeraSourceBuilder<String> source, LaneSplit... splits) throws Exception {
        ReadMetrics metrics = new ReadMetrics(InternalSourceReaderMetricGroup.mock(listener.getMetricGroup()));
        KeraSplitReader reader = new KeraSplitReader(source.settings(new Configuration()), "", new StreamIds(), metrics);
        reader.handleSplitsChanges(new SplitsAddition<>(List.of(splits)));
        return reader;
    }

    private static LaneSplit lane(int lane) {
        return new LaneSplit("s", 0, lane, 0, 0, LaneSplit.UNBOUNDED, false);
    }

    private static void produce(TestBroker broker, int lanes, int from, int to) throws Exception {
        try (Producer producer = Producer.placed("s", ProducerOptions.to(broker.address()).withBatchSize(1 << 10))) {
            for (int n = from; n < to; n++) {
                for (int lane = 0; lane < lanes; lane++) {
                    producer.appendTo(lane, null, String.valueOf(n).getBytes(StandardCharsets.UTF_8), List.of(), n);
                }
            }
        }
    }

    /** The ordinals that a fetch brought, by lane. */
    private static void fetch(KeraSplitReader reader, Map<String, List<Long>> into) throws IOException {
        RecordsWithSplitIds<KeraRecord> found = reader.fetch();
        for (String split; (split = found.nextSplit()) != null; ) {
            for (KeraRecord record; (record = found.nextRecordFromSplit()) != null; ) {
                into.computeIfAbsent(split, any -> new ArrayList<>()).add(record.ordinal());
            }
        }
    }

    private static List<Long> ordinals(long from, long to) {
        return LongStream.range(from, to).boxed().toList();
    }

    @Test
    void aLaneThatIsPausedIsNotAskedForAndGoesOnWhereItWas() throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 2);
            produce(broker, 2, 0, 100);
            try (KeraSplitReader reader = reader(source(broker.address()), lane(0), lane(1))) {
                Map<String, List<Long>> found = new TreeMap<>();
                while (found.values().stream().mapToInt(List::size).sum() < 200) {
                    fetch(reader, found);
                }
                reader.pauseOrResumeSplits(List.of(lane(1)), List.of());
                produce(broker, 2, 100, 200);
                while (found.get("s:0/0@0").size() < 200) {
                    fetch(reader, found);
                }
                produce(broker, 1, 200, 300);
                // Many reads more of the other lane, in each of which this one has its turn.
                while (found.get("s:0/0@0").size() < 300) {
                    fetch(reader, found);
                }
                assertEquals(ordinals(0, 100), found.get("s:0/1@0"));
                reader.pauseOrResumeSplits(List.of(lane(0)), List.of(lane(1)));
                while (found.get("s:0/1@0").size() < 200) {
                    fetch(reader, found);
                }
                assertEquals(ordinals(0, 200), found.get("s:0/1@0"));
                assertEquals(ordinals(0, 300), found.get("s:0/0@0"));
            }
        }
    }

    private static final String KEY = "ann";

    /** Half of the keys each; the one that has none of the last records comes to their end all the same. */
    @Test
    void theKeysOfOthersArePassedOver() throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()).withBatchSize(1 << 10))) {
                for (int n = 0; n < 400; n++) {
                    producer.append(n < 200 ? ("key-" + n % 20).getBytes() : KEY.getBytes(), String.valueOf(n).getBytes());
                }
            }
            LaneSplit one = lane(0).ofSlices(Slices.share(0, 2).bits());
            LaneSplit other = lane(0).ofSlices(Slices.share(1, 2).bits());
            boolean isOnes = Slices.share(0, 2).contains(KEY.getBytes(), 0);
            String without = (isOnes ? other : one).splitId();
            Map<String, List<Long>> found = new TreeMap<>();
            long passed = 0;
            try (KeraSplitReader reader = reader(source(broker.address()).order(Order.KEY), one, other)) {
                while (passed < 399 || found.values().stream().mapToInt(List::size).sum() < 400) {
                    RecordsWithSplitIds<KeraRecord> fetched = reader.fetch();
                    for (String split; (split = fetched.nextSplit()) != null; ) {
                        for (KeraRecord record; (record = fetched.nextRecordFromSplit()) != null; ) {
                            if (KeraSplitReader.isPassed(record)) {
                                passed = split.equals(without) ? Math.max(passed, record.ordinal()) : passed;
                                continue;
                            }
                            LaneSplit of = split.equals(one.splitId()) ? one : other;
                            assertTrue(Slices.ofBits(of.slices()).contains(record.key(), record.ordinal()), split);
                            found.computeIfAbsent(split, any -> new ArrayList<>()).add(record.ordinal());
                        }
                    }
                }
            }
            assertEquals(399, passed);
            assertTrue(found.get(without).get(found.get(without).size() - 1) < 200);
            List<Long> all = new ArrayList<>();
            found.values().forEach(all::addAll);
            all.sort(null);
            assertEquals(ordinals(0, 400), all);
        }
    }

    @Test
    void recordsThatWereDeletedFailTheJobOrArePassedOver() throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            produce(broker, 1, 0, 200);
            broker.run("", "stream", "trim", "s", "--ordinal", "140", "--streamlet", "0", "--lane", "0");
            Map<String, List<Long>> found = new TreeMap<>();
            try (KeraSplitReader reader = reader(source(broker.address()), lane(0))) {
                String told = assertThrows(IOException.class, () -> fetch(reader, found)).getMessage();
                assertTrue(told.contains("lane s:0/0@0") && told.contains("cannot be read at 0"), told);
            }
            assertEquals(Map.of(), found);
            try (KeraSplitReader reader = reader(source(broker.address()).skipDeleted(), lane(0))) {
                while (found.isEmpty() || found.get("s:0/0@0").size() < 60) {
                    fetch(reader, found);
                }
            }
            assertEquals(Map.of("s:0/0@0", ordinals(140, 200)), found);
        }
    }

    /** As a lane is that lost records: an autoscaler would see billions that wait. */
    @Test
    void aJumpOfOrdinalsIsNoRecordsThatWait() throws Exception {
        long jump = 1L << 32;
        try (FakeBroker owner = FakeBroker.readsNothing(5, 12 + 3 * jump)) {
            StreamInfo stream = FakeBroker.stream("s", owner.address());
            try (FakeBroker lookup = FakeBroker.lookup(stream, any -> owner.address());
                    KeraSplitReader reader = reader(source(lookup.address()), lane(0).at(5))) {
                Map<String, List<Long>> found = new TreeMap<>();
                fetch(reader, found);
                Gauge<Long> pending = listener.<Long>getGauge("pendingRecords").orElseThrow();
                assertEquals(7, pending.getValue());
                assertEquals(Map.of(), found);
            }
        }
    }
}
