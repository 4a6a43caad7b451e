package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.TestBroker;
import java.util.HexFormat;
import java.util.List;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.source.reader.splitreader.SplitsAddition;
import org.apache.flink.connector.testutils.source.reader.TestingReaderContext;
import org.apache.flink.connector.testutils.source.reader.TestingReaderOutput;
import org.apache.flink.runtime.metrics.groups.InternalSourceReaderMetricGroup;
import org.apache.flink.runtime.metrics.groups.UnregisteredMetricGroups;
import org.apache.flink.util.FlinkRuntimeException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A stream is deleted and made again: positions in the old one are not those in the new one. */
@Timeout(60)
class StreamMadeAgainTest {
    private static SourceSettings settings(String bootstrap, Order order) {
        return KeraSource.<String>builder()
                .bootstrap(bootstrap)
                .streams("s")
                .order(order)
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .settings(new Configuration());
    }

    private static StreamEnumerator<?> enumerator(TestBroker broker, Order order, EnumeratorState state, DirectContext context)
            throws Exception {
        SourceSettings settings = settings(broker.address(), order);
        return order == Order.NONE
                ? new RangeEnumerator(context, settings, state) : new KeraEnumerator(context, settings, state);
    }

    private static String id(Admin admin) throws Exception {
        return HexFormat.of().formatHex(admin.stream("s").id());
    }

    private static String madeAgain(Admin admin) throws Exception {
        String before = id(admin);
        admin.deleteStream("s");
        admin.createStream("s", 1, 1);
        return "stream s was deleted, and another one has its name: its id was " + before + " and is " + id(admin)
                + "; start the job without its state to read the new one";
    }

    @ParameterizedTest
    @EnumSource(Order.class)
    void aJobFailsAndSoDoesOneThatIsRestored(Order order) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            EnumeratorStateSerializer serializer = new EnumeratorStateSerializer();
            byte[] stored;
            try (StreamEnumerator<?> enumerator = enumerator(broker, order, null, new DirectContext())) {
                enumerator.start();
                stored = serializer.serialize(enumerator.snapshotState(1));
            }
            DirectContext same = new DirectContext();
            try (StreamEnumerator<?> enumerator = enumerator(broker, order, serializer.deserialize(serializer.getVersion(), stored), same)) {
                enumerator.start();
                same.runCalls();
            }
            DirectContext late = new DirectContext();
            try (StreamEnumerator<?> running = enumerator(broker, order, serializer.deserialize(serializer.getVersion(), stored), late)) {
                running.start();
                late.runCalls();
                String expected = madeAgain(admin);
                assertEquals(expected, failure(late));
                DirectContext restored = new DirectContext();
                try (StreamEnumerator<?> enumerator = enumerator(broker, order, serializer.deserialize(serializer.getVersion(), stored), restored)) {
                    enumerator.start();
                    assertEquals(expected, failure(restored));
                }
            }
        }
    }

    private static String failure(DirectContext context) {
        return assertThrows(FlinkRuntimeException.class, context::runCalls).getMessage();
    }

    private static KeraSplitReader reader(TestBroker broker, Order order) throws Exception {
        ReadMetrics metrics = new ReadMetrics(
                InternalSourceReaderMetricGroup.mock(UnregisteredMetricGroups.createUnregisteredOperatorMetricGroup()));
        return new KeraSplitReader(settings(broker.address(), order), "", new StreamIds(), metrics);
    }

    /** A task starts again from its checkpoint; the enumerator looks only later, if it is not started again. */
    @ParameterizedTest
    @EnumSource(Order.class)
    void aReaderThatIsStartedAgainFailsBeforeItReads(Order order) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            broker.run("a\nb\n", "produce", "s");
            DirectContext context = new DirectContext();
            LaneSplit assigned;
            try (StreamEnumerator<?> enumerator = enumerator(broker, order, null, context)) {
                enumerator.start();
                context.registerReader(0, "here");
                enumerator.addReader(0);
                enumerator.handleSplitRequest(0, "here");
                context.runCalls();
                assigned = context.getSplitAssignments().get(0).getAssignedSplits().get(0);
            }
            LaneSplitSerializer serializer = new LaneSplitSerializer();
            byte[] stored = serializer.serialize(assigned);
            String expected = madeAgain(admin);
            broker.run("c\nd\ne\n", "produce", "s");
            try (KeraSplitReader reader = reader(broker, order)) {
                LaneSplit split = serializer.deserialize(serializer.getVersion(), stored);
                assertEquals(expected, assertThrows(FlinkRuntimeException.class, () -> {
                    reader.handleSplitsChanges(new SplitsAddition<>(List.of(split)));
                    while (reader.fetch().nextSplit() == null) {
                        // Not yet.
                    }
                }).getMessage());
            }
        }
    }

    /** A checkpoint of an earlier connector has no ids of its splits. The next one has. */
    @Test
    void splitsWithoutAnIdGetTheOneThatTheirStreamHas() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            broker.run("a\nb\n", "produce", "s");
            KeraSource<String> source = KeraSource.<String>builder()
                    .bootstrap(broker.address())
                    .streams("s")
                    .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                    .build(new Configuration());
            try (SourceReader<String, LaneSplit> reader = source.createReader(new TestingReaderContext())) {
                reader.start();
                reader.addSplits(List.of(new LaneSplit("s", 0, 0, 0, 0, LaneSplit.UNBOUNDED, false)));
                TestingReaderOutput<String> output = new TestingReaderOutput<>();
                while (output.getEmittedRecords().size() < 2) {
                    reader.isAvailable().get();
                    reader.pollNext(output);
                }
                assertEquals(List.of(new LaneSplit("s", 0, 0, 0, 2, LaneSplit.UNBOUNDED, false).of(id(admin))), reader.snapshotState(1));
            }
        }
    }

    /** Its connection was lost meanwhile, so that no read tells it that the stream is gone. */
    @Test
    void aReaderThatRunsFails() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            broker.run("a\nb\n", "produce", "s");
            try (KeraSplitReader reader = reader(broker, Order.LANE)) {
                reader.handleSplitsChanges(
                        new SplitsAddition<>(List.of(new LaneSplit("s", 0, 0, 0, 0, LaneSplit.UNBOUNDED, false))));
                while (reader.fetch().nextSplit() == null) {
                    // Not yet.
                }
                broker.kill();
                broker.restart();
                String expected = madeAgain(admin);
                broker.run("c\nd\ne\n", "produce", "s");
                assertEquals(expected, assertThrows(FlinkRuntimeException.class, () -> {
                    while (true) {
                        reader.fetch();
                    }
                }).getMessage());
            }
        }
    }
}
