package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.FutureTask;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** All of a transaction is read, or nothing; those that are prepared wait for whoever has their handle. */
@Timeout(120)
class TransactionsTest {
    private static Admin admin(TestBroker broker) {
        return new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
    }

    private static Producer producer(TestBroker broker, String id) throws IOException {
        ProducerOptions options = ProducerOptions.to(broker.address()).withBatchSize(1 << 10);
        return new Producer("s", options.withTransactionalId(id));
    }

    private static void append(Producer producer, int from, int to) throws IOException {
        for (int n = from; n < to; n++) {
            byte[] text = String.valueOf(n).getBytes(StandardCharsets.UTF_8);
            producer.append(n % 2 == 0 ? text : null, text);
        }
    }

    /** What readers see, sorted. */
    private static List<Integer> seen(Admin admin) throws IOException {
        List<Integer> seen = new ArrayList<>();
        StreamInfo stream = admin.stream("s");
        for (Admin.LaneBounds lane : admin.bounds("s")) {
            try (LaneReader reader = new LaneReader(
                    stream, lane.streamlet(), lane.lane(), lane.start(), lane.head(), ConnectOptions.DEFAULT)) {
                while (!reader.finished()) {
                    for (KeraRecord record : reader.read(1 << 20, 100)) {
                        seen.add(Integer.parseInt(new String(record.value(), StandardCharsets.UTF_8)));
                    }
                }
            }
        }
        seen.sort(null);
        return seen;
    }

    /** Readers see this and nothing else, once markers have followed the decision. */
    private static void sees(Admin admin, List<Integer> expected) throws Exception {
        for (int n = 0; n < 500 && !seen(admin).equals(expected); n++) {
            Thread.sleep(10);
        }
        assertEquals(expected, seen(admin));
    }

    private static List<Integer> numbers(int... bounds) {
        List<Integer> all = new ArrayList<>();
        for (int n = 0; n < bounds.length; n += 2) {
            IntStream.range(bounds[n], bounds[n + 1]).forEach(all::add);
        }
        return all;
    }

    @Test
    void requestsAreAsTheVectorsHaveThem() throws IOException {
        TransactionHandle handle = new TransactionHandle("pay/0/7", 4711, (short) 2, 9);
        byte[] vector = Vectors.read().get("end-transaction");
        // Behind the prefix and the header of a call.
        byte[] body = Arrays.copyOfRange(vector, 12 + 5, vector.length);
        assertArrayEquals(body, new Wire.Writer().bytes(1, handle.encoded()).number(2, 1).done());
        assertEquals(handle, TransactionHandle.decoded(handle.encoded()));
        byte[] append = Vectors.read().get("append-transactional");
        byte[] plain = Vectors.read().get("batch");
        byte[] batch = Arrays.copyOfRange(append, append.length - plain.length, append.length);
        BatchBuilder.markTransactional(plain);
        BatchBuilder.stamp(plain, 4711, (short) 2, 7);
        assertArrayEquals(batch, plain);
    }

    @Test
    void whatIsCommittedIsReadAndWhatIsAbortedIsNot() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 2, 2);
            try (Producer producer = producer(broker, "one")) {
                assertThrows(IllegalStateException.class, () -> producer.append(null, new byte[1]));
                for (int round = 0; round < 4; round++) {
                    producer.beginTransaction();
                    append(producer, round * 100, round * 100 + 100);
                    if (round % 2 == 0) {
                        producer.commitTransaction();
                    } else {
                        producer.abortTransaction();
                    }
                }
                producer.beginTransaction();
                assertThrows(IllegalStateException.class, producer::beginTransaction);
                producer.commitTransaction();
                producer.beginTransaction();
                append(producer, 400, 500);
                producer.flush();
                try (Producer second = producer(broker, "one")) {
                    KeraException fenced = assertThrows(KeraException.class, producer::commitTransaction);
                    assertEquals(ErrorCodes.UNKNOWN_TRANSACTION, fenced.code(), fenced.getMessage());
                    fenced = assertThrows(KeraException.class, producer::beginTransaction);
                    assertEquals(ErrorCodes.FENCED_PRODUCER, fenced.code(), fenced.getMessage());
                    second.beginTransaction();
                    append(second, 500, 600);
                    second.commitTransaction();
                    // What is open when it is closed is aborted.
                    second.beginTransaction();
                    append(second, 600, 700);
                }
            }
            sees(admin, numbers(0, 100, 200, 300, 500, 600));
        }
    }

    @Test
    void whatAnotherThreadAbortsIsNotCommittedByWhoWaitedForIt() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            ProducerOptions options = ProducerOptions.to(broker.address()).withTransactionalId("one");
            ProducerTransaction transaction = new ProducerTransaction(admin.stream("s"), options, (lane, error) -> {});
            try {
                transaction.open();
                transaction.closing();
                assertTrue(transaction.isClosing());
                // Another thread aborts it while this one waits for its records, and a third one begins the next.
                transaction.take();
                assertFalse(transaction.isClosing());
                assertThrows(IOException.class, transaction::takeClosed);
                transaction.over(false);
                transaction.open();
                assertThrows(IOException.class, transaction::takeClosed);
            } finally {
                transaction.end();
            }
        }
    }

    @Test
    void whatAnotherThreadIsAboutToAppendIsWaitedFor() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 1);
            try (Producer producer = producer(broker, "one")) {
                producer.beginTransaction();
                append(producer, 0, 2);
                producer.flush();
                // An append that finds the transaction open stops at the next thing that it takes, the memory of its batch.
                Field field = Producer.class.getDeclaredField("memory");
                field.setAccessible(true);
                FutureTask<Void> append = new FutureTask<>(() -> {
                    append(producer, 2, 3);
                    return null;
                });
                FutureTask<Void> commit = new FutureTask<>(() -> {
                    producer.commitTransaction();
                    return null;
                });
                Object memory = field.get(producer);
                synchronized (memory) {
                    blocked(append, memory);
                    blocked(commit, null);
                }
                append.get();
                commit.get();
            }
            sees(admin, numbers(0, 3));
        }
    }

    /** Runs it in another thread, which comes to where it needs the monitor, or any that another thread has. */
    private static void blocked(Runnable run, Object monitor) {
        Thread thread = new Thread(run);
        thread.start();
        while (thread.isAlive() && !isBlocked(thread, monitor)) {
            Thread.onSpinWait();
        }
    }

    private static boolean isBlocked(Thread thread, Object monitor) {
        ThreadInfo info = ManagementFactory.getThreadMXBean().getThreadInfo(thread.getId());
        if (info == null || info.getThreadState() != Thread.State.BLOCKED || info.getLockInfo() == null) {
            return false;
        }
        return monitor == null || info.getLockInfo().getIdentityHashCode() == System.identityHashCode(monitor);
    }

    @Test
    void whatSomebodyEndsMeanwhileIsNotCommittedInPart() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker);
                Transactions others = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 8);
            try (Producer producer = producer(broker, "one")) {
                producer.beginTransaction();
                append(producer, 0, 1);
                producer.flush();
                assertTrue(others.abort(others.open("one").get(0).handle()));
                // Other lanes: they would be part of another transaction, without the first record.
                for (int n = 1; n < 50; n++) {
                    byte[] text = String.valueOf(n).getBytes(StandardCharsets.UTF_8);
                    producer.append(text, text);
                }
                assertThrows(ProduceException.class, producer::commitTransaction);
                producer.beginTransaction();
                append(producer, 50, 60);
                producer.commitTransaction();
            }
            sees(admin, numbers(50, 60));
        }
    }

    @Test
    void aProducerWhoseIdWasForgottenBeginsAnew() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker);
                Transactions others = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            try (Producer producer = producer(broker, "one")) {
                producer.beginTransaction();
                append(producer, 0, 10);
                TransactionHandle handle = producer.prepareTransaction();
                assertTrue(others.commit(handle));
                others.forget(handle);
                // Nobody has told it yet.
                producer.beginTransaction();
                append(producer, 10, 20);
                assertThrows(ProduceException.class, producer::commitTransaction);
                producer.beginTransaction();
                append(producer, 20, 30);
                producer.commitTransaction();
            }
            sees(admin, numbers(0, 10, 20, 30));
        }
    }

    /** Two are as old as each other, and one producer gives signs of life. */
    @Test
    void aTransactionIsOpenForAsLongAsItsProducerLives() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker);
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            ProducerOptions options = ProducerOptions.to(broker.address()).withTransactionTimeout(Duration.ofSeconds(3));
            try (Producer lives = new Producer("s", options.withTransactionalId("beats/1").withTransactionHeartbeats(true));
                    Producer silent = new Producer("s", options.withTransactionalId("silent/1"))) {
                for (Producer each : List.of(lives, silent)) {
                    each.beginTransaction();
                    append(each, 0, 5);
                    each.flush();
                }
                while (!transactions.open("silent/").isEmpty()) {
                    Thread.sleep(20);
                }
                // Once more, for as long again.
                assertThrows(IOException.class, silent::commitTransaction);
                silent.beginTransaction();
                append(silent, 0, 5);
                silent.flush();
                while (!transactions.open("silent/").isEmpty()) {
                    Thread.sleep(20);
                }
                assertThrows(IOException.class, silent::commitTransaction);
                assertEquals(1, transactions.open("beats/").size());
                lives.commitTransaction();
                sees(admin, numbers(0, 5));

                // One that somebody ends is not committed.
                lives.beginTransaction();
                append(lives, 5, 10);
                lives.flush();
                List<Transactions.Aborted> aborted = transactions.abortByPrefix("beats/", Transactions.Which.OPEN);
                assertEquals(List.of("beats/1"), aborted.stream().map(each -> each.handle().transactionalId()).toList());
                assertEquals(Optional.empty(), aborted.get(0).refused());
                IOException ended = assertThrows(IOException.class, () -> {
                    while (true) {
                        // It hears of it by a heartbeat.
                        Thread.sleep(20);
                        failure(lives);
                    }
                });
                assertTrue(ended.getMessage().contains("somebody else has ended the transaction while its producer was alive"),
                        ended.getMessage());
                assertThrows(IOException.class, lives::commitTransaction);
                KeraException fenced = assertThrows(KeraException.class, lives::beginTransaction);
                assertEquals(ErrorCodes.FENCED_PRODUCER, fenced.code(), fenced.getMessage());
                sees(admin, numbers(0, 5));
                assertThrows(KeraException.class, () -> transactions.abortByPrefix("", Transactions.Which.OPEN));
            }
        }
    }

    /** Throws why the producer's transaction cannot be committed. */
    private static void failure(Producer producer) throws Exception {
        Field field = Producer.class.getDeclaredField("driver");
        field.setAccessible(true);
        ((ProducerDriver) field.get(producer)).transaction().check();
    }

    @Test
    void whatEarlierRunsLeftIsAbortedByItsPrefix() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker);
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            List<Producer> left = new ArrayList<>();
            for (String id : List.of("job/7", "job/8", "job/9", "job/x", "jobs/9")) {
                Producer producer = producer(broker, id);
                left.add(producer);
                producer.beginTransaction();
                append(producer, 0, 1);
                if (id.equals("job/9")) {
                    producer.prepareTransaction();
                } else {
                    producer.flush();
                }
            }
            assertEquals(List.of("job/8"), ids(transactions.abortByPrefix(
                    "job/", new Transactions.Which(false, OptionalLong.of(7)))), "what is prepared is left");
            assertEquals(List.of("job/9"), ids(transactions.abortByPrefix("job/", new Transactions.Which(true, OptionalLong.of(7)))));
            assertEquals(List.of("job/7", "job/x"), ids(transactions.abortByPrefix("job/", Transactions.Which.OPEN)));
            assertEquals(List.of(), transactions.abortByPrefix("job/", Transactions.Which.OPEN));
            assertEquals(1, transactions.open("job").size(), "that of another prefix");
            for (Producer each : left) {
                try {
                    each.close();
                } catch (KeraException ended) {
                    // Its transaction is no more.
                    assertEquals(ErrorCodes.UNKNOWN_TRANSACTION, ended.code());
                }
            }
            sees(admin, List.of());
        }
    }

    private static List<String> ids(List<Transactions.Aborted> aborted) {
        aborted.forEach(each -> assertEquals(Optional.empty(), each.refused()));
        return aborted.stream().map(each -> each.handle().transactionalId()).toList();
    }

    @Test
    void whatIsPreparedIsEndedByItsHandle() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 2, 1);
            List<TransactionHandle> handles = new ArrayList<>();
            for (int n = 0; n < 3; n++) {
                try (Producer producer = producer(broker, "job/" + n + "/1")) {
                    producer.beginTransaction();
                    assertNull(producer.prepareTransaction(), "it has no records");
                    producer.beginTransaction();
                    append(producer, n * 100, n * 100 + 100);
                    handles.add(producer.prepareTransaction());
                }
            }
            broker.kill();
            broker.restart();
            List<Transactions.Open> open;
            try (Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
                open = transactions.open("job/");
                assertEquals(handles, open.stream().map(Transactions.Open::handle).toList());
                assertTrue(open.stream().allMatch(Transactions.Open::prepared));
                assertTrue(transactions.open("other").isEmpty());
                // As bytes, as an engine keeps it.
                TransactionHandle first = TransactionHandle.decoded(handles.get(0).encoded());
                assertTrue(transactions.commit(first));
                assertTrue(transactions.commit(first), "again");
                assertFalse(transactions.abort(first), "it was committed");
                transactions.abortAll(open.get(1));
                KeraException forgotten = assertThrows(KeraException.class, () -> transactions.commit(handles.get(1)));
                assertEquals(ErrorCodes.UNKNOWN_TRANSACTION, forgotten.code(), forgotten.getMessage());
                assertTrue(transactions.abort(handles.get(2)));
                assertFalse(transactions.commit(handles.get(2)), "it was aborted");
                transactions.forget(first);
                assertThrows(KeraException.class, () -> transactions.commit(first));
            }
            sees(admin, numbers(0, 100));
        }
    }

    @Test
    void aBrokerThatIsKilledLosesNoCommit() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker)) {
            admin.createStream("s", 1, 2);
            try (Producer producer = producer(broker, "one")) {
                for (int round = 0; round < 5; round++) {
                    producer.beginTransaction();
                    append(producer, round * 100, round * 100 + 100);
                    Thread killer = new Thread(() -> {
                        try {
                            broker.kill();
                            broker.restart();
                        } catch (IOException | InterruptedException error) {
                            throw new IllegalStateException(error);
                        }
                    });
                    killer.start();
                    producer.commitTransaction();
                    killer.join();
                    sees(admin, numbers(0, round * 100 + 100));
                }
            }
        }
    }
}
