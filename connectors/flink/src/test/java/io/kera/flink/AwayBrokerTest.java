package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.FakeBroker;
import io.kera.client.KeraRecord;
import io.kera.client.StreamInfo;
import io.kera.client.TestBroker;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.source.reader.RecordsWithSplitIds;
import org.apache.flink.connector.base.source.reader.splitreader.SplitsAddition;
import org.apache.flink.runtime.metrics.groups.InternalSourceReaderMetricGroup;
import org.apache.flink.runtime.metrics.groups.UnregisteredMetricGroups;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A reader of nine lanes, eight of which belong to a broker that stands still: it takes connections and says nothing. */
@Timeout(60)
class AwayBrokerTest {
    private static final int LANES = 9;

    private final Map<Integer, String> owners = new ConcurrentHashMap<>();

    private KeraSplitReader reader(String bootstrap, Silence silence) throws Exception {
        SourceSettings settings = KeraSource.<String>builder()
                .bootstrap(bootstrap)
                .streams("s")
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .settings(new Configuration());
        ReadMetrics metrics = new ReadMetrics(
                InternalSourceReaderMetricGroup.mock(UnregisteredMetricGroups.createUnregisteredOperatorMetricGroup()));
        KeraSplitReader reader = new KeraSplitReader(settings, "", new StreamIds(), metrics, silence);
        reader.handleSplitsChanges(new SplitsAddition<>(IntStream.range(0, LANES)
                .mapToObj(streamlet -> new LaneSplit("s", streamlet, 0, 0, 0, LaneSplit.UNBOUNDED, false))
                .toList()));
        return reader;
    }

    private FakeBroker lookup(StreamInfo stream, TestBroker broker, FakeBroker still) throws IOException {
        owners.put(0, broker.address());
        IntStream.range(1, LANES).forEach(streamlet -> owners.put(streamlet, still.address()));
        return FakeBroker.lookup(stream, owners::get);
    }

    @Test
    void otherLanesAreReadMeanwhileAndItsLanesWhenAnotherBrokerOwnsThem() throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
                FakeBroker still = FakeBroker.standingStill()) {
            admin.createStream("s", LANES, 1);
            try (FakeBroker lookup = lookup(admin.stream("s"), broker, still);
                    KeraSplitReader reader = reader(lookup.address(), new Silence())) {
                int healthy = 0;
                for (int round = 1; round <= 5; round++) {
                    broker.run(lines(2_000), "produce", "s", "--batch-size", "1KiB");
                    long stored = admin.bounds("s").stream().filter(lane -> lane.streamlet() == 0).mapToLong(Admin.LaneBounds::head).sum();
                    assertTrue(stored > 0);
                    while (healthy < stored) {
                        healthy += count(reader.fetch());
                    }
                    assertEquals(stored, healthy);
                }
                assertEquals(1, still.accepted());
                owners.replaceAll((streamlet, owner) -> broker.address());
                for (int seen = healthy; seen < 10_000; ) {
                    seen += count(reader.fetch());
                }
            }
        }
    }

    @Test
    void whatIsNotReadInTimeFailsTheJobByItsName() throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
                FakeBroker still = FakeBroker.standingStill()) {
            admin.createStream("s", LANES, 1);
            Silence silence = new Silence(Duration.ofSeconds(1).toNanos(), told -> {});
            try (FakeBroker lookup = lookup(admin.stream("s"), broker, still);
                    KeraSplitReader reader = reader(lookup.address(), silence)) {
                String told = assertThrows(IOException.class, () -> {
                    while (true) {
                        reader.fetch();
                    }
                }).getMessage();
                assertTrue(told.startsWith("lane s:") && told.contains("broker " + still.address()), told);
            }
        }
    }

    private static String lines(int count) {
        return IntStream.range(0, count).mapToObj(n -> n + "\n").collect(Collectors.joining());
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
}
