package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.StreamInfo.Streamlet;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Brokers that do not answer, as a reader of many lanes sees them. The timeout is far beyond that of the tests. */
@Timeout(60)
class OwnerConnectionsTest {
    private static final ConnectOptions LONG = ConnectOptions.DEFAULT.withTimeoutMillis(600_000);
    private static final Duration PATIENCE = Duration.ofMillis(50);

    private static LaneReader reader(String owner, int lane, OwnerConnections connections) throws IOException {
        StreamInfo stream = new StreamInfo("s", new byte[16], 0, 2, true, 1 << 20, false, List.of(new Streamlet(0, owner)));
        return new LaneReader(stream, 0, lane, 5, LaneReader.UNBOUNDED, LaneReader.ALL_GENERATIONS, connections);
    }

    @Test
    void lanesOfABrokerThatStandsStillShareAnAttempt() throws Exception {
        try (FakeBroker broker = FakeBroker.standingStill(); OwnerConnections connections = new OwnerConnections(LONG, PATIENCE)) {
            for (int lane = 0; lane < 20; lane++) {
                int mine = lane;
                String told = assertThrows(IOException.class, () -> reader(broker.address(), mine, connections)).getMessage();
                assertTrue(told.contains(broker.address()), told);
            }
            assertEquals(1, broker.accepted());
        }
    }

    @Test
    void aLateAnswerIsThatOfTheReadThatAskedForIt() throws Exception {
        FakeBroker.Answers answers = new FakeBroker.Answers() {
            @Override
            public byte[] body(FrameChannel.Frame request) {
                return new byte[0];
            }

            @Override
            public byte[] header(FrameChannel.Frame request) {
                // The cursor behind what is read: the ordinal that was asked for, and 10.
                Wire.Reader fields = new Wire.Reader(request.header());
                long from = 0;
                for (int field; (field = fields.next()) != 0; ) {
                    if (field == 4) {
                        from = LaneReader.ordinal(fields.part());
                    } else {
                        fields.skip();
                    }
                }
                return new Wire.Writer().bytes(3, new Wire.Writer().number(1, from + 10).done()).number(4, 100).done();
            }
        };
        try (FakeBroker broker = FakeBroker.late(answers); OwnerConnections connections = new OwnerConnections(LONG, PATIENCE)) {
            LaneReader one = reader(broker.address(), 0, connections);
            LaneReader two = reader(broker.address(), 1, connections);
            for (int attempt = 0; attempt < 10; attempt++) {
                String told = assertThrows(SilentBrokerException.class, () -> one.read(1 << 10, 0)).getMessage();
                assertTrue(told.contains(broker.address()), told);
                assertThrows(SilentBrokerException.class, () -> two.read(1 << 10, 0));
            }
            assertEquals(1, broker.asked(), "reads wait for the one before");
            broker.goOn();
            awaitPosition(two, 15);
            awaitPosition(one, 15);
            assertEquals(2, broker.asked());
            assertEquals(1, broker.accepted());
        }
    }

    private static void awaitPosition(LaneReader reader, long position) throws IOException {
        while (reader.position() < position) {
            try {
                reader.read(1 << 10, 0);
            } catch (SilentBrokerException error) {
                // Not yet.
            }
        }
        assertEquals(position, reader.position());
    }
}
