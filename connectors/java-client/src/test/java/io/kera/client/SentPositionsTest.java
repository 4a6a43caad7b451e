package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.ConsumerOptions.Order;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Programs copy a stream: each transaction has the copied records and the group's position behind them. */
@Timeout(120)
class SentPositionsTest {
    private static final Duration SOON = Duration.ofMillis(100);
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private static byte[] bytes(Object text) {
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static Admin admin(String address) {
        return new Admin(List.of(address), ConnectOptions.DEFAULT);
    }

    private static Producer producer(String address, String id) throws IOException {
        return new Producer("out", ProducerOptions.to(address).withLinger(Duration.ZERO).withTransactionalId(id));
    }

    private static ConsumerOptions byHand(String address) {
        return ConsumerOptions.to(address).withCommitInterval(Duration.ZERO);
    }

    private static Consumer consumer(String address) throws IOException {
        return new Consumer("in", "copy", byHand(address));
    }

    /** These numbers in {@code in}, ten in a batch. */
    private static void append(String address, int from, int to) throws IOException {
        try (Producer producer = new Producer("in", ProducerOptions.to(address).withLinger(Duration.ofSeconds(1)))) {
            for (int n = from; n < to; n++) {
                producer.append(bytes(n % 40), bytes(n));
                if (n % 10 == 9) {
                    producer.flush();
                }
            }
        }
    }

    private static void copy(Producer producer, ConsumedBatch batch) throws IOException {
        for (KeraRecord record : batch.records()) {
            producer.append(record.key(), record.value());
        }
    }

    /** What the group has consumed, in all lanes. */
    private static long committed(Admin admin) throws IOException {
        return admin.group("copy").progress().lanes().stream().mapToLong(GroupProgress.Lane::committed).sum();
    }

    /** What readers of what is committed see in {@code out}. */
    private static List<Integer> copied(Admin admin) throws IOException {
        List<Integer> seen = new ArrayList<>();
        StreamInfo stream = admin.stream("out");
        for (Admin.LaneBounds lane : admin.bounds("out")) {
            try (LaneReader reader = new LaneReader(
                    stream, lane.streamlet(), lane.lane(), lane.start(), lane.head(), ConnectOptions.DEFAULT)) {
                while (!reader.finished()) {
                    for (KeraRecord record : reader.read(1 << 20, 100)) {
                        seen.add(Integer.parseInt(new String(record.value(), StandardCharsets.UTF_8)));
                    }
                }
            }
        }
        return seen;
    }

    /** A program that copies, aborts on purpose, and dies with what it has open. */
    private static final class Copier {
        private final String address;
        private final String id;
        private final Order order;
        private final AtomicInteger commits;
        private final Thread thread;
        private volatile boolean ended;
        /** Batches that were delivered to all its runs. */
        private int delivered;

        Copier(String address, String id, Order order, AtomicInteger commits) {
            this.address = address;
            this.id = id;
            this.order = order;
            this.commits = commits;
            thread = new Thread(this::run, "copier-" + id);
            thread.start();
        }

        private void run() {
            ConsumerOptions options = byHand(address).withOrder(order).withSession(Duration.ofSeconds(1));
            while (!ended) {
                Consumer consumer = null;
                try (Producer producer = producer(address, id)) {
                    consumer = new Consumer("in", "copy", options);
                    while (!ended) {
                        ConsumedBatch batch = consumer.next(SOON);
                        if (batch != null) {
                            copyOne(producer, consumer, batch);
                        }
                    }
                } catch (IOException | RuntimeException error) {
                    // It begins anew, as a program that is started again.
                } finally {
                    if (consumer != null) {
                        // Nobody is told: its leases end with its session.
                        consumer.stop();
                    }
                }
            }
        }

        private void copyOne(Producer producer, Consumer consumer, ConsumedBatch batch) throws IOException {
            int turn = ++delivered % 16;
            producer.beginTransaction();
            copy(producer, batch);
            if (turn == 4) {
                // Before it has positions.
                producer.abortTransaction();
                consumer.rewind();
                return;
            }
            producer.sendPositions(consumer.positions(List.of(batch)));
            if (turn == 6) {
                // Its records are there, its positions as well, and nobody ends it before its next run.
                producer.flush();
                consumer.stop();
                throw new IOException("killed");
            }
            if (turn == 2 || turn == 9) {
                producer.abortTransaction();
            } else {
                producer.commitTransaction();
                commits.incrementAndGet();
            }
        }

        void end() throws InterruptedException {
            ended = true;
            thread.join(PATIENCE.toMillis());
            assertFalse(thread.isAlive(), "a copier does not end");
        }
    }

    @ParameterizedTest
    @EnumSource(Order.class)
    void aStreamIsCopiedOnceWhoeverIsKilled(Order order) throws Exception {
        int part = 80;
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address())) {
            admin.createStream("in", 1, order == Order.KEY ? 1 : 3);
            admin.createStream("out", 1, 2);
            append(broker.address(), 0, part);
            AtomicInteger commits = new AtomicInteger();
            List<Copier> copiers = List.of(
                    new Copier(broker.address(), "one", order, commits), new Copier(broker.address(), "two", order, commits));
            try {
                long deadline = System.nanoTime() + PATIENCE.toNanos();
                int kills = 0;
                for (Set<Integer> seen = Set.of(); seen.size() < 3 * part; ) {
                    List<Integer> all = copied(admin);
                    seen = new HashSet<>(all);
                    assertEquals(all.size(), seen.size(), () -> "a record is copied twice: " + all);
                    assertTrue(System.nanoTime() < deadline, seen.size() + " are copied, " + broker.told());
                    // After some progress, and while there is work.
                    if (kills < 2 && commits.get() >= (kills + 1) * 3) {
                        kills++;
                        append(broker.address(), part * kills, part * (kills + 1));
                        broker.kill();
                        broker.restart();
                    }
                }
            } finally {
                for (Copier copier : copiers) {
                    copier.end();
                }
            }
            List<Integer> all = copied(admin);
            all.sort(null);
            assertEquals(IntStream.range(0, 3 * part).boxed().toList(), all);
        }
    }

    @Test
    void positionsCountWithTheRecordsAndOthersWaitForThem() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address());
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("in", 1, 1);
            admin.createStream("out", 1, 1);
            append(broker.address(), 0, 50);
            try (Producer producer = producer(broker.address(), "one"); Consumer first = consumer(broker.address())) {
                ConsumedBatch batch = first.next(PATIENCE);
                producer.beginTransaction();
                copy(producer, batch);
                GroupPositions positions = first.positions(List.of(batch));
                producer.sendPositions(positions);
                producer.sendPositions(positions);
                assertEquals(0, committed(admin), "nothing counts yet");
                // It is gone, and its position is held.
                first.close();
                broker.kill();
                broker.restart();
                GroupProgress.HeldPosition held = admin.group("copy").progress().lanes().get(0).held().get(0);
                assertEquals(batch.next(), held.next());
                try (Consumer heir = consumer(broker.address())) {
                    for (int n = 0; n < 50; n++) {
                        // The coordinator has its chances to grant a lease.
                        assertEquals(0, committed(admin));
                    }
                    assertNull(heir.next(SOON), "nobody knows where to begin");
                    producer.commitTransaction();
                    ConsumedBatch next = heir.next(PATIENCE);
                    assertEquals(batch.next(), next.records().get(0).ordinal());
                    assertEquals(batch.next(), committed(admin));
                    goesBack(admin, producer, heir, next, transactions);
                }
            }
        }
    }

    /** What is not committed for certain is delivered again, and what was delivered before cannot be committed. */
    private static void goesBack(Admin admin, Producer producer, Consumer consumer, ConsumedBatch batch, Transactions transactions)
            throws IOException {
        long begin = batch.records().get(0).ordinal();
        ConsumedBatch beyond = consumer.next(PATIENCE);
        producer.beginTransaction();
        copy(producer, batch);
        producer.sendPositions(consumer.positions(List.of(batch)));
        producer.abortTransaction();
        for (ConsumedBatch gone : List.of(batch, beyond)) {
            for (Tried each : List.<Tried>of(() -> consumer.positions(List.of(gone)), () -> consumer.mark(gone), () -> consumer.commit(gone))) {
                assertEquals(ErrorCodes.STALE_LEASE, assertThrows(KeraException.class, each::run).code());
            }
        }
        ConsumedBatch again = consumer.next(PATIENCE);
        assertEquals(begin, again.records().get(0).ordinal());
        // The same for who goes back before it has sent a position.
        consumer.rewind();
        again = consumer.next(PATIENCE);
        assertEquals(begin, again.records().get(0).ordinal());

        // One that is prepared ends by its handle, also one of positions alone.
        producer.beginTransaction();
        producer.sendPositions(consumer.positions(List.of(again)));
        TransactionHandle handle = producer.prepareTransaction();
        ConsumedBatch prepared = again;
        assertThrows(KeraException.class, () -> consumer.positions(List.of(prepared)), "it is not known how it ends");
        assertEquals(begin, committed(admin));
        assertTrue(transactions.commit(handle));
        assertEquals(again.next(), consumer.next(PATIENCE).records().get(0).ordinal());
    }

    private interface Tried {
        void run() throws IOException;
    }

    /** One lease is part of a transaction that is open, and another one is not. */
    @Test
    void aCommitWaitsForATransactionOfItsLeaseAlone() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address())) {
            admin.createStream("in", 1, 2);
            admin.createStream("out", 1, 1);
            append(broker.address(), 0, 200);
            try (Producer producer = producer(broker.address(), "one"); Consumer consumer = consumer(broker.address())) {
                ConsumedBatch held = consumer.next(PATIENCE);
                ConsumedBatch more = held;
                ConsumedBatch other = held;
                while (more == held || other == held) {
                    ConsumedBatch next = consumer.next(PATIENCE);
                    if (next.lease() == held.lease()) {
                        more = next;
                    } else {
                        other = next;
                    }
                }
                producer.beginTransaction();
                producer.sendPositions(consumer.positions(List.of(held)));
                ConsumedBatch waits = more;
                FutureTask<Void> commit = new FutureTask<>(() -> {
                    consumer.commit(waits);
                    return null;
                });
                consumer.mark(waits);
                new Thread(commit, "commit").start();
                consumer.commit(other);
                assertFalse(commit.isDone(), "a transaction has its lease");
                assertEquals(other.next(), committed(admin));
                producer.commitTransaction();
                commit.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
                assertEquals(other.next() + waits.next(), committed(admin));
            }
        }
    }

    @Test
    void whoeverIsFencedCommitsNoPositions() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address())) {
            admin.createStream("in", 1, 1);
            admin.createStream("out", 1, 1);
            append(broker.address(), 0, 20);
            try (Producer old = producer(broker.address(), "one"); Consumer consumer = consumer(broker.address())) {
                ConsumedBatch batch = consumer.next(PATIENCE);
                GroupPositions positions = consumer.positions(List.of(batch));
                assertThrows(IllegalStateException.class, () -> old.sendPositions(positions));
                old.beginTransaction();
                try (Producer next = producer(broker.address(), "one")) {
                    KeraException fenced = assertThrows(KeraException.class, () -> old.sendPositions(positions));
                    assertEquals(ErrorCodes.FENCED_PRODUCER, fenced.code());
                    ProduceException failed = assertThrows(ProduceException.class, old::commitTransaction);
                    assertTrue(failed.getMessage().contains("positions of group copy"), failed.getMessage());
                    // The lease was given up with it.
                    ConsumedBatch again = consumer.next(PATIENCE);
                    assertEquals(0, again.records().get(0).ordinal());
                    next.beginTransaction();
                    KeraException stale = assertThrows(KeraException.class, () -> next.sendPositions(positions));
                    assertEquals(ErrorCodes.STALE_LEASE, stale.code());
                    assertThrows(ProduceException.class, next::commitTransaction);
                    assertEquals(0, committed(admin));
                }
            }
            try (Consumer automatic = new Consumer("in", "copy", ConsumerOptions.to(broker.address()))) {
                assertThrows(IllegalStateException.class, () -> automatic.positions(List.of()));
            }
        }
    }

    /** A broker that gives a transaction the number 9, answers calls of a method as a test says, and keeps what it was asked. */
    private static final class Scripted implements FakeBroker.Answers {
        static final int LOST = -1;
        private final Map<Integer, Queue<Integer>> script;
        private final List<String> asked = new ArrayList<>();
        private String address;

        Scripted(Map<Integer, Queue<Integer>> script) {
            this.script = script;
        }

        @Override
        public byte[] header(FrameChannel.Frame request) throws IOException {
            int method = FakeBroker.method(request);
            Queue<Integer> errors = script.getOrDefault(method, new LinkedList<>());
            int error;
            synchronized (this) {
                ByteBuffer body = request.body().duplicate();
                byte[] message = new byte[body.remaining()];
                body.get(message);
                asked.add(method + " " + new String(message, StandardCharsets.ISO_8859_1));
                error = errors.isEmpty() ? 0 : errors.size() == 1 ? errors.peek() : errors.remove();
            }
            if (error == LOST) {
                throw new IOException("planted");
            }
            return error == 0 ? new byte[0] : new Wire.Writer().number(1, error).text(2, "planted").done();
        }

        @Override
        public byte[] body(FrameChannel.Frame request) {
            return switch (FakeBroker.method(request)) {
                case Methods.GET_STREAM -> FakeBroker.described(FakeBroker.stream("out", address), any -> address);
                case Methods.INIT_TRANSACTIONS -> new Wire.Writer().number(1, 7).number(2, 1).done();
                case Methods.ADD_TO_TRANSACTION -> new Wire.Writer().number(1, 9).done();
                case Methods.END_TRANSACTION -> new Wire.Writer().number(1, 1).done();
                default -> new byte[0];
            };
        }

        synchronized List<String> asked(int method) {
            return asked.stream().filter(each -> each.startsWith(method + " ")).toList();
        }
    }

    private static final Lease LEASE = new Lease(5, 0, 0, 0, LaneReader.UNBOUNDED, 0);

    /** Sends positions, and commits or does not; what the consumer hears, and what went wrong. */
    private record Played(List<Boolean> told, IOException sending, IOException ending, Scripted broker) {}

    private static Played play(Map<Integer, Queue<Integer>> script) throws IOException {
        // What is never answered is given up soon.
        boolean isLost = script.values().stream().anyMatch(errors -> errors.equals(List.of(Scripted.LOST)));
        Duration deadline = isLost ? SOON : PATIENCE;
        Scripted scripted = new Scripted(script);
        List<Boolean> told = new ArrayList<>();
        GroupPositions positions = new GroupPositions("copy", "me", Map.of(LEASE, 30L), (any, committed) -> told.add(committed));
        try (FakeBroker broker = FakeBroker.late(scripted)) {
            broker.goOn();
            scripted.address = broker.address();
            ProducerOptions options = ProducerOptions.to(broker.address()).withTransactionalId("id").withDeadline(deadline);
            try (Producer producer = new Producer("out", options)) {
                producer.beginTransaction();
                IOException sending = thrown(() -> producer.sendPositions(positions));
                assertEquals(List.of(), told, "it is open");
                IOException ending = thrown(producer::commitTransaction);
                return new Played(List.copyOf(told), sending, ending, scripted);
            }
        }
    }

    private static IOException thrown(Tried what) {
        try {
            what.run();
            return null;
        } catch (IOException error) {
            return error;
        }
    }

    private static Map<Integer, Queue<Integer>> answers(int method, Integer... errors) {
        return Map.of(method, new LinkedList<>(List.of(errors)));
    }

    @Test
    void positionsWhoseAnswerIsLostAreSentAgainAsTheyWere() throws Exception {
        Played played = play(answers(Methods.SEND_POSITIONS, Scripted.LOST, ErrorCodes.TRANSACTION_PENDING, 0));
        assertNull(played.sending());
        assertNull(played.ending());
        assertEquals(List.of(true), played.told());
        List<String> sent = played.broker().asked(Methods.SEND_POSITIONS);
        assertEquals(3, sent.size());
        byte[] handle = new TransactionHandle("id", 7, (short) 1, 9).encoded();
        byte[] commit = new Wire.Writer().number(1, 5).bytes(2, new Wire.Writer().number(1, 30).done()).done();
        byte[] expected = new Wire.Writer().bytes(1, handle).text(2, "copy").text(3, "me").bytes(4, commit).done();
        String said = Methods.SEND_POSITIONS + " " + new String(expected, StandardCharsets.ISO_8859_1);
        assertEquals(List.of(said, said, said), sent);
    }

    @Test
    void aTransactionWithoutItsPositionsIsNotCommitted() throws Exception {
        for (int method : new int[] {Methods.ADD_TO_TRANSACTION, Methods.SEND_POSITIONS}) {
            for (int error : new int[] {ErrorCodes.STALE_LEASE, ErrorCodes.UNKNOWN_MEMBER, Scripted.LOST}) {
                Played played = play(answers(method, error));
                assertEquals(error != Scripted.LOST, played.sending() instanceof KeraException, String.valueOf(played.sending()));
                ProduceException refused = assertInstanceOf(ProduceException.class, played.ending());
                assertEquals(error == Scripted.LOST, refused.isUncertain());
                assertEquals(List.of(false), played.told(), "it goes back, once");
                // Field 2 is left out: no commit.
                byte[] handle = new Wire.Writer().bytes(1, new TransactionHandle("id", 7, (short) 1, 9).encoded()).done();
                String aborted = Methods.END_TRANSACTION + " " + new String(handle, StandardCharsets.ISO_8859_1);
                List<String> ends = played.broker().asked(Methods.END_TRANSACTION);
                assertEquals(method == Methods.SEND_POSITIONS ? List.of(aborted) : List.of(), ends);
            }
        }
    }

    @Test
    void anEndThatNobodyKnowsIsNoCommit() throws Exception {
        Played played = play(answers(Methods.END_TRANSACTION, Scripted.LOST));
        assertNull(played.sending());
        assertTrue(played.ending().getMessage().contains("may have been done"), String.valueOf(played.ending()));
        assertEquals(List.of(false), played.told(), "the coordinator knows where the group stands");
    }
}
