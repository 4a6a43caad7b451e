package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class ReadingTest {
    private static TestBroker broker;
    private static Admin admin;

    @BeforeAll
    static void start() throws Exception {
        broker = TestBroker.start();
        admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
    }

    @AfterAll
    static void stop() throws Exception {
        if (broker != null) {
            broker.close();
        }
    }

    private static List<String> numbers(int from, int to) {
        return IntStream.range(from, to).mapToObj(Integer::toString).toList();
    }

    private static List<String> read(StreamInfo stream, long start, long end, int maxBytes) throws IOException {
        List<String> values = new ArrayList<>();
        try (LaneReader reader = new LaneReader(stream, 0, 0, start, end, ConnectOptions.DEFAULT)) {
            while (!reader.finished()) {
                reader.read(maxBytes, 1000).forEach(record -> values.add(new String(record.value())));
            }
        }
        return values;
    }

    @Test
    void streamsAreMadeListedGrownAndDeleted() throws Exception {
        StreamInfo made = admin.createStream("made", 2, 3);
        assertEquals(2, made.streamlets().size());
        assertEquals(6, made.partitions());
        assertTrue(made.byKey());
        assertEquals(6, admin.bounds("made").size());
        assertTrue(admin.streams().stream().anyMatch(stream -> stream.name().equals("made")));
        assertEquals(9, admin.growStream("made", 9).partitions());
        Generations grown = admin.generations("made");
        assertEquals(List.of(6, 9), grown.all().stream().map(Generations.Generation::partitions).toList());
        assertEquals(Generations.Barrier.STREAM, grown.all().get(1).barrier());
        assertEquals(6, grown.all().get(1).boundaries().size());
        admin.deleteStream("made");
        KeraException gone = assertThrows(KeraException.class, () -> admin.stream("made"));
        assertEquals(ErrorCodes.UNKNOWN_STREAM, gone.code());
    }

    @Test
    void aChangeIsSentOnceAndOverAConnectionThatLives() throws Exception {
        try (TestBroker other = TestBroker.start();
                Admin direct = new Admin(List.of(other.address()), ConnectOptions.DEFAULT);
                LossyProxy proxy = new LossyProxy()) {
            assertEquals(List.of(), direct.streams());
            other.kill();
            other.restart();
            // The connection of before ended while it was idle.
            direct.createStream("first", 1, 1);
            proxy.passTo(other.address());
            proxy.swallowBehindHello();
            CompletableFuture<Void> cut = CompletableFuture.runAsync(() -> {
                try {
                    proxy.awaitSwallowed();
                    proxy.cut();
                } catch (IOException | InterruptedException error) {
                    throw new CompletionException(error);
                }
            });
            try (Admin admin = new Admin(List.of(proxy.address(), other.address()), ConnectOptions.DEFAULT)) {
                IOException lost = assertThrows(IOException.class, () -> admin.createStream("second", 1, 1));
                assertTrue(lost.getMessage().contains("may have been done"), lost.getMessage());
                cut.get();
                assertEquals("second", direct.stream("second").name(), "it was done");
            }
        }
    }

    @Test
    void arangeOfALaneIsReadAndNothingElse() throws Exception {
        admin.createStream("s", 1, 1);
        broker.run(numbers(0, 20).stream().map(n -> n + "\n").collect(Collectors.joining()), "produce", "s");
        StreamInfo stream = admin.stream("s");
        Admin.LaneBounds lane = admin.bounds("s").get(0);
        assertEquals(new Admin.LaneBounds(0, 0, 0, 20), lane);
        assertEquals(numbers(0, 20), read(stream, 0, 20, 1 << 20));
        assertEquals(numbers(3, 17), read(stream, 3, 17, 1), "records outside of the range are dropped");
        assertEquals(List.of(), read(stream, 0, 0, 1), "an empty range ends at once");
        try (LaneReader reader = new LaneReader(stream, 0, 0, 3, 17, ConnectOptions.DEFAULT)) {
            assertEquals(0, reader.behind(), "not known yet");
            int read = reader.read(1, 1000).size();
            assertEquals(14 - read, reader.behind(), "below its end");
        }
        try (LaneReader reader = new LaneReader(stream, 0, 0, 18, LaneReader.UNBOUNDED, ConnectOptions.DEFAULT)) {
            assertEquals(2, reader.read(1 << 20, 1000).size());
            assertEquals(20, reader.position());
            assertEquals(0, reader.behind());
            assertEquals(List.of(), reader.read(1 << 20, 50));
            assertFalse(reader.finished(), "no end");
        }
        admin.commitPositions("engine", "s", List.of(new LanePosition(0, 0, 15)));
        assertTrue(broker.run("", "group", "describe", "engine").contains("15"));
    }

    @Test
    void readersShareAConnectionThatMayEnd() throws Exception {
        try (TestBroker other = TestBroker.start();
                Admin direct = new Admin(List.of(other.address()), ConnectOptions.DEFAULT);
                OwnerConnections owners = new OwnerConnections(ConnectOptions.DEFAULT)) {
            StreamInfo info = direct.createStream("shared", 1, 2);
            LaneReader one = new LaneReader(info, 0, 0, 0, LaneReader.UNBOUNDED, LaneReader.ALL_GENERATIONS, owners);
            LaneReader two = new LaneReader(info, 0, 1, 0, LaneReader.UNBOUNDED, LaneReader.ALL_GENERATIONS, owners);
            assertEquals(0, one.read(1, 10).size() + two.read(1, 10).size());
            one.close();
            assertEquals(1, owners.count());
            other.kill();
            assertThrows(IOException.class, () -> one.read(1, 10));
            assertEquals(0, owners.count());
            assertThrows(IOException.class, () -> two.read(1, 10));
            other.restart();
            assertEquals(0, two.read(1, 10).size(), "over another connection");
            assertEquals(0, one.read(1, 10).size());
            assertEquals(1, owners.count());
        }
    }

    @Test
    void aJumpOfOrdinalsIsNoRecord() {
        long jump = 1L << 32;
        assertEquals(0, LaneReader.behind(5, 5));
        assertEquals(7, LaneReader.behind(5, 12));
        assertEquals(7, LaneReader.behind(5, 12 + jump));
        assertEquals(7, LaneReader.behind(5, 12 + 3 * jump));
        assertEquals(0, LaneReader.behind(5, 3 + jump), "the reader has seen what the broker lost");
        assertEquals(0, LaneReader.behind(5, 3));
    }

    @Test
    void rangesEndAtBatchBoundaries() throws Exception {
        admin.createStream("cut", 1, 1);
        for (int batch = 0; batch < 3; batch++) {
            String lines = numbers(0, 10).stream().map(n -> n + "\n").collect(Collectors.joining());
            // One batch, however slowly the lines come.
            broker.run(lines, "produce", "cut", "--linger", "20s");
        }
        try (LaneCutter cutter = new LaneCutter(admin, ConnectOptions.DEFAULT)) {
            assertEquals(new LaneCutter.Range(0, 10), cutter.cut("cut", 0, 0, 0, 1));
            assertEquals(new LaneCutter.Range(10, 30), cutter.cut("cut", 0, 0, 10, 1 << 20));
            assertEquals(null, cutter.cut("cut", 0, 0, 30, 1));
            KeraException noLane = assertThrows(KeraException.class, () -> cutter.cut("cut", 0, 7, 0, 1));
            assertEquals(ErrorCodes.UNKNOWN_LANE, noLane.code(), noLane.getMessage());
            KeraException beyond = assertThrows(KeraException.class, () -> cutter.cut("cut", 0, 0, 31, 1));
            assertEquals(ErrorCodes.OUT_OF_RANGE, beyond.code(), beyond.getMessage());
            assertEquals(new LaneCutter.Range(20, 30), cutter.cut("cut", 0, 0, 20, 1), "after a refusal as well");
        }
    }

    @Test
    void batchesThatOthersCompressedAreRead() throws Exception {
        // The vectors have only blocks that are stored; these are compressed.
        List<String> values = numbers(0, 20).stream().map(n -> "long".repeat(50) + n).toList();
        String lines = values.stream().map(value -> value + "\n").collect(Collectors.joining());
        for (String codec : List.of("gzip", "snappy", "lz4", "zstd")) {
            admin.createStream(codec, 1, 1);
            broker.run(lines, "produce", codec, "--compression", codec);
            assertEquals(values, read(admin.stream(codec), 0, 20, 1 << 20), codec);
        }
    }
}
