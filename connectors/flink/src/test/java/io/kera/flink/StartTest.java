package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.TestBroker;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.util.FlinkRuntimeException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Where the reading of a lane begins: at a time, or where records are left. */
@Timeout(60)
class StartTest {
    private static KeraSourceBuilder<String> source(TestBroker broker) {
        return KeraSource.<String>builder()
                .bootstrap(broker.address())
                .streams("s")
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()));
    }

    private static Admin admin(TestBroker broker) {
        return new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
    }

    /** A number of records, ten milliseconds apart, several to a batch. */
    private static void produce(TestBroker broker, int records) throws Exception {
        try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()).withBatchSize(1 << 10))) {
            for (int n = 0; n < records; n++) {
                producer.append(null, String.valueOf(n).getBytes(StandardCharsets.UTF_8), List.of(), 10_000 + 10 * n);
            }
        }
    }

    @Test
    void aTimeIsFoundToTheRecord() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            produce(broker, 200);
            for (int wanted : new int[] {0, 3, 101, 199, 200}) {
                SourceSettings settings =
                        source(broker).start(Start.timestamp(10_000 + 10 * wanted - 5)).settings(new Configuration());
                try (KeraEnumerator enumerator = new KeraEnumerator(new DirectContext(), settings, null)) {
                    enumerator.start();
                    LaneSplit split = enumerator.snapshotState(1).plans().get(0).parts().get(0).split();
                    assertEquals(wanted, split.position());
                }
            }
        }
    }

    /** Retention, or somebody, deletes records that a job without order has not cut yet. */
    @Test
    void rangesGoOnBehindWhatWasDeletedOrFailTheJob() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            SourceSettings fails = source(broker).order(Order.NONE).settings(new Configuration());
            EnumeratorState state;
            try (RangeEnumerator enumerator = new RangeEnumerator(new DirectContext(), fails, null)) {
                enumerator.start();
                state = enumerator.snapshotState(1);
            }
            produce(broker, 200);
            broker.run("", "stream", "trim", "s", "--ordinal", "140", "--streamlet", "0", "--lane", "0");
            DirectContext failing = new DirectContext();
            try (RangeEnumerator enumerator = new RangeEnumerator(failing, fails, state)) {
                wants(enumerator, failing);
                Exception lost = assertThrows(FlinkRuntimeException.class, failing::runCalls);
                assertTrue(lost.getMessage().contains("lane s:0/0 cannot be read at 0"), lost.getMessage());
            }
            SourceSettings skips = source(broker).order(Order.NONE).skipDeleted().settings(new Configuration());
            DirectContext going = new DirectContext();
            try (RangeEnumerator enumerator = new RangeEnumerator(going, skips, state)) {
                wants(enumerator, going);
                going.runCalls();
                LaneSplit range = going.getSplitAssignments().get(0).getAssignedSplits().get(0);
                assertEquals(140, range.position());
                assertEquals(200, range.end());
            }
        }
    }

    private static void wants(RangeEnumerator enumerator, DirectContext context) {
        enumerator.start();
        context.registerReader(0, "here");
        enumerator.handleSplitRequest(0, "here");
    }
}
