package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

@Timeout(300)
class ProducerTest {
    private static byte[] bytes(Object text) {
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static Admin admin(TestBroker broker) {
        return new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
    }

    /** All records of a stream, by streamlet and lane. */
    private static Map<String, List<KeraRecord>> readAll(Admin admin, String name, ConnectOptions options)
            throws IOException {
        StreamInfo stream = admin.stream(name);
        Map<String, List<KeraRecord>> lanes = new HashMap<>();
        for (Admin.LaneBounds lane : admin.bounds(name)) {
            List<KeraRecord> records = new ArrayList<>();
            try (LaneReader reader =
                    new LaneReader(stream, lane.streamlet(), lane.lane(), lane.start(), lane.head(), options)) {
                while (!reader.finished()) {
                    records.addAll(reader.read(1 << 20, 1000));
                }
            }
            lanes.put(lane.streamlet() + "/" + lane.lane(), records);
        }
        return lanes;
    }

    /** Values of each key count up from 0, each once, within a lane and from lane to lane. */
    private static void checkKeys(Map<String, List<KeraRecord>> lanes, int keys, int each) {
        Map<String, List<Integer>> byKey = new HashMap<>();
        lanes.values().forEach(lane -> {
            Map<String, Integer> last = new HashMap<>();
            for (KeraRecord record : lane) {
                String key = new String(record.key(), StandardCharsets.UTF_8);
                int value = Integer.parseInt(new String(record.value(), StandardCharsets.UTF_8));
                Integer before = last.put(key, value);
                assertTrue(before == null || before < value, key + ": " + value + " behind " + before);
                byKey.computeIfAbsent(key, any -> new ArrayList<>()).add(value);
            }
        });
        assertEquals(keys, byKey.size());
        byKey.forEach((key, values) -> {
            values.sort(null);
            assertEquals(each, values.size(), key);
            for (int n = 0; n < each; n++) {
                assertEquals(n, values.get(n), key);
            }
        });
    }

    @ParameterizedTest
    @EnumSource(Compression.class)
    void recordsAreWhereTheirKeysBelong(Compression compression) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 3, 2);
            ProducerOptions options = ProducerOptions.to(broker.address()).withCompression(compression);
            List<CompletableFuture<RecordPlace>> places = new ArrayList<>();
            try (Producer producer = new Producer("s", options)) {
                for (int n = 0; n < 1_000; n++) {
                    List<KeraRecord.Header> headers = List.of(new KeraRecord.Header("n", bytes(n)));
                    places.add(producer.appendTracked(bytes("key-" + n % 50), bytes(n / 50), headers, 1_000 + n));
                }
                producer.flush();
                assertEquals(0, producer.memoryUsed());
            }
            Map<String, List<KeraRecord>> lanes = readAll(admin, "s", ConnectOptions.DEFAULT);
            checkKeys(lanes, 50, 20);
            for (int n = 0; n < 1_000; n++) {
                RecordPlace place = places.get(n).get();
                int partition = Partitions.of(bytes("key-" + n % 50), 6);
                assertEquals(Partitions.streamlet(partition, 3), place.streamlet());
                assertEquals(Partitions.lane(partition, 3), place.lane());
                KeraRecord record = lanes.get(place.streamlet() + "/" + place.lane()).get((int) place.ordinal());
                assertArrayEquals(bytes(n), record.headers().get(0).value());
                assertEquals(1_000 + n, record.timestamp());
            }
        }
    }

    /** An owner says of a stream that the user may not see any more that there is none, and whoever is asked by its name says why. */
    @Test
    void aStreamThatMayNotBeSeenAnyMoreIsNotAskedForUntilTheDeadline() throws Exception {
        AtomicLong looks = new AtomicLong();
        String[] address = new String[1];
        FakeBroker.Answers answers = new FakeBroker.Answers() {
            @Override
            public byte[] body(FrameChannel.Frame request) {
                return switch (request.kind() == FrameChannel.CALL ? FakeBroker.method(request) : 0) {
                    case Methods.GET_STREAM -> FakeBroker.described(FakeBroker.stream("s", address[0]), n -> address[0]);
                    case Methods.INIT_PRODUCER -> new Wire.Writer().number(1, 7).done();
                    default -> new byte[0];
                };
            }

            @Override
            public byte[] header(FrameChannel.Frame request) {
                if (request.kind() == FrameChannel.APPEND) {
                    return new Wire.Writer().number(1, ErrorCodes.UNKNOWN_STREAM).text(2, "no stream has that id").done();
                }
                boolean isLook = FakeBroker.method(request) == Methods.GET_STREAM && looks.getAndIncrement() > 0;
                return isLook ? new Wire.Writer().number(1, ErrorCodes.NOT_AUTHORIZED).text(2, "ann may not").done() : new byte[0];
            }
        };
        try (FakeBroker broker = FakeBroker.late(answers)) {
            address[0] = broker.address();
            broker.goOn();
            try (Producer producer = new Producer("s", ProducerOptions.to(address[0]).withDeadline(Duration.ofHours(1)))) {
                producer.append(null, new byte[1]);
                ProduceException refused = assertThrows(ProduceException.class, producer::flush);
                assertTrue(refused.getMessage().contains("ann may not"), refused.getMessage());
            }
        }
    }

    /** One that was just started, or is cut off. */
    @Test
    void aBrokerThatHasNotHeardOfTheStreamIsNotBelievedWhileAnotherKnowsIt() throws Exception {
        byte[] unknown = new Wire.Writer().number(1, ErrorCodes.UNKNOWN_STREAM).text(2, "planted").done();
        FakeBroker.Answers answers = new FakeBroker.Answers() {
            @Override
            public byte[] body(FrameChannel.Frame request) {
                return new byte[0];
            }

            @Override
            public byte[] header(FrameChannel.Frame request) {
                return unknown;
            }
        };
        for (boolean isThere : new boolean[] {true, false}) {
            try (FakeBroker fresh = FakeBroker.late(answers);
                    FakeBroker other = isThere ? FakeBroker.lookup(FakeBroker.stream("s", ""), n -> "") : FakeBroker.late(answers)) {
                fresh.goOn();
                other.goOn();
                CountDownLatch told = new CountDownLatch(1);
                Cluster cluster = new Cluster(List.of(fresh.address(), other.address()), ConnectOptions.DEFAULT);
                MetadataWatch watch = new MetadataWatch("s", cluster, "watch", told::countDown);
                watch.want();
                told.await();
                assertEquals(isThere, watch.gone() == null);
                assertEquals(isThere, watch.take() != null);
                watch.close();
            }
        }
    }

    @Test
    void whatIsAppendedWhileTheProducerIsClosedIsStoredOrRefused() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 2);
            AtomicLong taken = new AtomicLong();
            for (int round = 0; round < 30; round++) {
                CountDownLatch begun = new CountDownLatch(2_000);
                List<Thread> threads = new ArrayList<>();
                try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()))) {
                    for (int n = 0; n < 3; n++) {
                        Thread thread = new Thread(() -> {
                            try {
                                while (true) {
                                    producer.append(null, bytes("value"));
                                    taken.incrementAndGet();
                                    begun.countDown();
                                }
                            } catch (IOException error) {
                                assertEquals("the producer is closed", error.getMessage());
                            }
                        });
                        threads.add(thread);
                        thread.start();
                    }
                    begun.await();
                }
                for (Thread thread : threads) {
                    thread.join();
                }
            }
            long stored = 0;
            for (Admin.LaneBounds lane : admin.bounds("s")) {
                stored += lane.head() - lane.start();
            }
            assertEquals(taken.get(), stored);
        }
    }

    @Test
    void aBrokerThatIsKilledCostsNoRecordAndDoublesNone() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 2, 2);
            try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()).withBatchSize(1 << 10))) {
                for (int round = 0; round < 3; round++) {
                    for (int n = 0; n < 5_000; n++) {
                        int number = round * 5_000 + n;
                        producer.append(bytes("key-" + number % 20), bytes(number / 20));
                        if (n == 2_500) {
                            broker.kill();
                            broker.restart();
                        }
                    }
                }
                producer.flush();
            }
            checkKeys(readAll(admin, "s", ConnectOptions.DEFAULT), 20, 750);
        }
    }

    @Test
    void answersThatAreLostAreAskedForAgain() throws Exception {
        try (LossyProxy proxy = new LossyProxy();
                TestBroker broker = TestBroker.start("--server-advertise", proxy.address());
                Admin admin = admin(broker)) {
            proxy.passTo(broker.address());
            admin.createStream("s", 1, 1);
            try (Producer producer = new Producer("s", ProducerOptions.to(proxy.address()).withBatchSize(1 << 10))) {
                for (int round = 0; round < 5; round++) {
                    // There is a connection.
                    producer.append(bytes("key"), bytes(round * 200));
                    producer.flush();
                    proxy.swallowAnswers();
                    for (int n = 1; n < 200; n++) {
                        producer.append(bytes("key"), bytes(round * 200 + n));
                    }
                    long stored = round * 200L + 1;
                    long patience = System.nanoTime() + 60_000_000_000L;
                    // Some are stored, and the producer does not hear of it.
                    while (admin.bounds("s").get(0).head() == stored) {
                        assertTrue(System.nanoTime() < patience, "nothing arrives");
                    }
                    proxy.cut();
                }
            }
            checkKeys(readAll(admin, "s", ConnectOptions.DEFAULT), 1, 1_000);
        }
    }

    @Test
    void aBrokerThatReadsNothingMoreKeepsNobodyFromHearingOfTheDeadline() throws Exception {
        ConnectOptions connect = ConnectOptions.DEFAULT.withTimeoutMillis(500);
        try (LossyProxy proxy = new LossyProxy();
                TestBroker broker = TestBroker.start("--server-advertise", proxy.address());
                Admin admin = admin(broker)) {
            proxy.passTo(broker.address());
            admin.createStream("s", 1, 8);
            ProducerOptions options =
                    ProducerOptions.to(proxy.address()).withConnect(connect).withDeadline(Duration.ofSeconds(2));
            Producer producer = new Producer("s", options);
            producer.append(bytes("key"), bytes("there is a connection"));
            producer.flush();
            proxy.readNothing();
            // More than the buffers of sockets take.
            byte[] value = new byte[100_000];
            for (int n = 0; n < 300; n++) {
                producer.append(bytes(n), value);
            }
            assertTimeoutPreemptively(
                    Duration.ofSeconds(120), () -> assertThrows(ProduceException.class, producer::flush), "it is held up");
            assertTimeoutPreemptively(Duration.ofSeconds(120), () -> {
                try {
                    producer.close();
                } catch (ProduceException error) {
                    // Batches of a second flush.
                }
            });
        }
    }

    @Test
    void lanesThatGrowUnderTheProducerKeepTheOrderOfKeys() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 2, 1);
            try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()).withBatchSize(1 << 10))) {
                int[] partitions = {4, 5, 12};
                for (int round = 0; round < 4; round++) {
                    for (int n = 0; n < 3_000; n++) {
                        int number = round * 3_000 + n;
                        producer.append(bytes("key-" + number % 30), bytes(number / 30));
                        if (n == 1_500 && round < partitions.length) {
                            admin.growStream("s", partitions[round]);
                        }
                    }
                }
                producer.flush();
                assertEquals(0, producer.memoryUsed());
            }
            checkKeys(readAll(admin, "s", ConnectOptions.DEFAULT), 30, 400);
            checkGenerations(admin);
        }
    }

    @Test
    void recordsThatNameTheirPartitionStayThereWhileLanesGrow() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 2, 1);
            ProducerOptions options = ProducerOptions.to(broker.address()).withBatchSize(1 << 10);
            try (Producer producer = Producer.placed("s", options)) {
                for (int n = 0; n < 6_000; n++) {
                    producer.appendTo(n % 2, bytes("key-" + n % 30), bytes(n), List.of(), n);
                    if (n == 3_000) {
                        admin.growStream("s", 6);
                    }
                }
                producer.flush();
                assertEquals(6, producer.partitions());
                producer.appendTo(5, null, bytes("last"), List.of(), 0);
                assertThrows(IllegalArgumentException.class, () -> producer.appendTo(6, null, bytes(0), List.of(), 0));
                assertThrows(IllegalStateException.class, () -> producer.append(bytes("key"), bytes(0)));
            }
            Map<String, List<KeraRecord>> lanes = readAll(admin, "s", ConnectOptions.DEFAULT);
            for (int partition = 0; partition < 2; partition++) {
                List<KeraRecord> lane = lanes.get(partition + "/0");
                assertEquals(3_000, lane.size());
                for (int n = 0; n < lane.size(); n++) {
                    assertArrayEquals(bytes(2 * n + partition), lane.get(n).value());
                }
            }
            assertEquals(1, lanes.get("1/2").size());
            assertEquals(0, lanes.get("0/1").size());
        }
    }

    @Test
    void aRecordCannotNameALaneThatItsOwnerChooses() throws Exception {
        try (TestBroker broker = TestBroker.start()) {
            broker.run("", "stream", "create", "s", "--lane-by", "producer");
            ProducerOptions options = ProducerOptions.to(broker.address());
            assertThrows(IllegalArgumentException.class, () -> Producer.placed("s", options));
            try (Producer producer = new Producer("s", options)) {
                assertThrows(IllegalStateException.class, () -> producer.appendTo(0, null, bytes(0), List.of(), 0));
            }
        }
    }

    /** What a key has below a boundary comes before what it has above, in whichever lane. */
    private static void checkGenerations(Admin admin) throws IOException {
        Generations generations = admin.generations("s");
        Map<String, List<KeraRecord>> lanes = readAll(admin, "s", ConnectOptions.DEFAULT);
        Map<String, Integer> last = new HashMap<>();
        for (Generations.Generation generation : generations.all()) {
            Map<String, Long> ends = new HashMap<>();
            int next = generation.number() + 1;
            if (next < generations.all().size()) {
                for (LanePosition boundary : generations.all().get(next).boundaries()) {
                    ends.put(boundary.streamlet() + "/" + boundary.lane(), boundary.ordinal());
                }
            }
            Map<String, Integer> newest = new HashMap<>(last);
            lanes.forEach((lane, records) -> {
                long end = ends.getOrDefault(lane, next < generations.all().size() ? 0 : Long.MAX_VALUE);
                while (!records.isEmpty() && records.get(0).ordinal() < end) {
                    KeraRecord record = records.remove(0);
                    String key = new String(record.key(), StandardCharsets.UTF_8);
                    int value = Integer.parseInt(new String(record.value(), StandardCharsets.UTF_8));
                    assertTrue(last.getOrDefault(key, -1) < value, key + ": " + value + " of generation " + next);
                    newest.merge(key, value, Math::max);
                }
            });
            last.putAll(newest);
        }
    }

    @Test
    void memoryThatIsShortHoldsAppendsUp() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 4);
            ProducerOptions options = ProducerOptions.to(broker.address())
                    .withBatchSize(16 << 10).withMemoryLimit(64 << 10).withLinger(Duration.ofSeconds(20));
            byte[] value = new byte[1_000];
            try (Producer producer = new Producer("s", options)) {
                for (int n = 0; n < 2_000; n++) {
                    producer.append(bytes("key-" + n), value);
                    assertTrue(producer.memoryUsed() <= 64 << 10, "at " + n + ": " + producer.memoryUsed());
                }
            }
            int stored = readAll(admin, "s", ConnectOptions.DEFAULT).values().stream().mapToInt(List::size).sum();
            assertEquals(2_000, stored);
        }
    }

    @Test
    void whatCannotBeStoredIsToldByFlush() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            ProducerOptions options = ProducerOptions.to(broker.address()).withDeadline(Duration.ofSeconds(1));
            Producer producer = new Producer("s", options);
            KeraException large = assertThrows(KeraException.class, () -> producer.append(null, new byte[80 << 20]));
            assertEquals(ErrorCodes.BATCH_TOO_LARGE, large.code());
            broker.kill();
            producer.append(null, bytes("lost"));
            ProduceException error = assertThrows(ProduceException.class, producer::flush);
            assertTrue(error.getMessage().contains("deadline"), error.getMessage());
            producer.close();
            assertThrows(IOException.class, () -> producer.append(null, bytes("late")));
            assertThrows(KeraException.class, () -> {
                broker.restart();
                new Producer("absent", options).close();
            });
        }
    }

    @Test
    void aStreamThatIsDeletedIsNotWaitedFor() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            ProducerOptions options = ProducerOptions.to(broker.address()).withDeadline(Duration.ofHours(1));
            Producer producer = new Producer("s", options);
            producer.append(null, bytes("stored"));
            producer.flush();
            admin.deleteStream("s");
            producer.append(null, bytes("late"));
            ProduceException error = assertThrows(ProduceException.class, producer::flush);
            assertTrue(error.getMessage().contains("was deleted"), error.getMessage());
            producer.close();
        }
    }

    @Test
    void ownersMayChooseTheLane() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            broker.run("", "stream", "create", "s", "--streamlets", "2", "--lanes", "2", "--lane-by", "producer");
            try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()))) {
                for (int n = 0; n < 100; n++) {
                    producer.append(bytes("key"), bytes(n));
                }
                admin.growStream("s", 8);
                for (int n = 100; n < 200; n++) {
                    producer.append(null, bytes(n));
                }
            }
            int stored = readAll(admin, "s", ConnectOptions.DEFAULT).values().stream().mapToInt(List::size).sum();
            assertEquals(200, stored);
        }
    }

    @Test
    void connectionsAreEncryptedAndBothSidesProveWhoTheyAre(@TempDir Path home) throws Exception {
        Path made = home.resolve("certificates");
        try (TestBroker plain = TestBroker.start()) {
            plain.run("", "certificate", "dev", made.toString());
        }
        String[] flags = {
            "--tls-listeners", "native", "--tls-certificate", made.resolve("server.pem").toString(), "--tls-key",
            made.resolve("server-key.pem").toString(), "--tls-client-ca", made.resolve("ca.pem").toString(),
            "--tls-client-auth", "required"
        };
        try (TestBroker broker = TestBroker.start(flags)) {
            ConnectOptions known = ConnectOptions.DEFAULT.withTls(Tls.withCertificate(
                    made.resolve("ca.pem"), made.resolve("client.pem"), made.resolve("client-key.pem")));
            try (Admin admin = new Admin(List.of(broker.address()), known)) {
                admin.createStream("s", 1, 2);
                try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()).withConnect(known))) {
                    for (int n = 0; n < 100; n++) {
                        producer.append(bytes("key-" + n % 10), bytes(n / 10));
                    }
                }
                checkKeys(readAll(admin, "s", known), 10, 10);
            }
            ConnectOptions unknown = ConnectOptions.DEFAULT.withTls(Tls.trusting(made.resolve("ca.pem")));
            for (ConnectOptions refused : List.of(unknown, ConnectOptions.DEFAULT.withTimeoutMillis(2_000))) {
                try (Admin admin = new Admin(List.of(broker.address()), refused)) {
                    assertThrows(IOException.class, admin::streams);
                }
            }
            Files.writeString(home.resolve("empty.pem"), "");
            assertThrows(IOException.class, () -> Tls.trusting(home.resolve("empty.pem")));
        }
    }

    /** It stands still once it has the batch, and another broker owns the lane from then on. */
    @Test
    void aBrokerThatStandsStillIsNotWaitedForWhereAnotherOwnsTheLane() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker);
                FakeBroker still = FakeBroker.late(request -> new byte[0]);
                Cluster cluster = new Cluster(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            try (FakeBroker lookup = FakeBroker.lookup(
                            admin.stream("s"), streamlet -> still.asked() == 0 ? still.address() : broker.address(), cluster);
                    // The connection counts as lost after 20 s.
                    Producer producer = new Producer(
                            "s", ProducerOptions.to(lookup.address()).withDeadline(Duration.ofSeconds(15)))) {
                producer.append(null, bytes("once"));
                producer.flush();
            }
            List<KeraRecord> stored = readAll(admin, "s", ConnectOptions.DEFAULT).get("0/0");
            assertEquals(1, stored.size());
        }
    }

    @Test
    void whatWaitsForAcknowledgementsIsRefusedWhereTheyAreTold() throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()))) {
                CompletableFuture<RecordPlace> place = producer.appendTracked(null, bytes("a"), List.of(), 1);
                CompletableFuture<Exception> told = place.handle((any, error) -> assertThrows(IllegalStateException.class, producer::flush));
                CompletableFuture<Exception> also = place.handle((any, error) -> assertThrows(IllegalStateException.class, producer::close));
                producer.flush();
                assertTrue(told.get().getMessage().startsWith("flush in a callback"), told.get().getMessage());
                assertTrue(also.get().getMessage().startsWith("close in a callback"), also.get().getMessage());
                // Another producer's acknowledgements come by other threads.
                try (Producer other = new Producer("s", ProducerOptions.to(broker.address()))) {
                    CompletableFuture<Boolean> flushed = other.appendTracked(null, bytes("b"), List.of(), 1).handle((any, error) -> {
                        try {
                            producer.append(null, bytes("c"));
                            producer.flush();
                            return true;
                        } catch (IOException failed) {
                            return false;
                        }
                    });
                    other.flush();
                    assertTrue(flushed.get());
                }
            }
        }
    }
}
