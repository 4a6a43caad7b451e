package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.ConsumerOptions.Order;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

@Timeout(120)
class ConsumerTest {
    private static final Duration SOON = Duration.ofMillis(200);
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private static byte[] bytes(Object text) {
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static Admin admin(String address) {
        return new Admin(List.of(address), ConnectOptions.DEFAULT);
    }

    /** Records numbered from {@code from} on, of so many keys in turn. */
    private static void produce(String address, int from, int to, int keys) throws IOException {
        try (Producer producer = new Producer("s", ProducerOptions.to(address).withBatchSize(1 << 10))) {
            for (int n = from; n < to; n++) {
                producer.append(bytes("key-" + n % keys), bytes(n));
            }
        }
    }

    private static int number(KeraRecord record) {
        return Integer.parseInt(new String(record.value(), StandardCharsets.UTF_8));
    }

    /** Members of a group that run until so many different records were seen. */
    private static final class Members {
        private final Set<Integer> seen = ConcurrentHashMap.newKeySet();
        private final AtomicInteger again = new AtomicInteger();
        private final Map<String, Integer> newest = new ConcurrentHashMap<>();
        private final List<Throwable> failures = new ArrayList<>();
        private final List<Thread> threads = new ArrayList<>();
        private volatile int wanted = Integer.MAX_VALUE;

        void start(int count, ConsumerOptions options) {
            for (int n = 0; n < count; n++) {
                Thread thread = new Thread(() -> consume(options), "member-" + n);
                threads.add(thread);
                thread.start();
            }
        }

        private void consume(ConsumerOptions options) {
            try (Consumer consumer = new Consumer("s", "g", options)) {
                while (seen.size() < wanted) {
                    ConsumedBatch batch = consumer.next(SOON);
                    if (batch == null) {
                        continue;
                    }
                    for (KeraRecord record : batch.records()) {
                        take(record, options.order());
                    }
                }
            } catch (IOException | AssertionError error) {
                synchronized (failures) {
                    failures.add(error);
                }
                wanted = 0;
            }
        }

        private void take(KeraRecord record, Order order) {
            int number = number(record);
            if (!seen.add(number)) {
                again.incrementAndGet();
            } else if (order != Order.NONE) {
                String key = new String(record.key(), StandardCharsets.UTF_8);
                Integer before = newest.merge(key, number, Math::max);
                assertEquals(number, before, key + " has " + number + " behind " + before);
            }
        }

        /** Waits until so many are seen. */
        void await(int records) throws InterruptedException {
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            wanted = Math.min(wanted, records);
            for (Thread thread : threads) {
                thread.join(Math.max(1, (deadline - System.nanoTime()) / 1_000_000));
                assertTrue(!thread.isAlive(), "only " + seen.size() + " of " + records + " were seen");
            }
            assertEquals(List.of(), failures);
            assertEquals(records, seen.size());
        }
    }

    private static void assertNothingLeft(String address, Order order) throws IOException {
        try (Consumer consumer = new Consumer("s", "g", ConsumerOptions.to(address).withOrder(order))) {
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            while (order != Order.NONE && consumer.leases().isEmpty()) {
                assertTrue(System.nanoTime() < deadline, "no lease comes");
                assertNull(consumer.next(SOON));
            }
            assertNull(consumer.next(SOON), "all is committed");
        }
    }

    @ParameterizedTest
    @EnumSource(Order.class)
    void membersShareAStreamWhateverBecomesOfTheBroker(Order order) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address())) {
            admin.createStream("s", 2, order == Order.LANE ? 2 : 1);
            Members members = new Members();
            ConsumerOptions options = ConsumerOptions.to(broker.address())
                    .withOrder(order).withCommitInterval(Duration.ofMillis(50));
            options = order == Order.KEY ? options : options.withMaxLeases(order == Order.LANE ? 8 : 2);
            members.start(3, options);
            for (int round = 0; round < 3; round++) {
                produce(broker.address(), round * 4_000, round * 4_000 + 4_000, 40);
                if (round < 2) {
                    broker.kill();
                    broker.restart();
                }
            }
            members.await(12_000);
            assertNothingLeft(broker.address(), order);
        }
    }

    /** Each member keeps what it has until all have something: no lane is left to the last ones. */
    @Test
    void withoutOrderMoreMembersThanLanesReadAtOnce() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address())) {
            admin.createStream("s", 2, 1);
            int members = 5;
            CountDownLatch without = new CountDownLatch(members);
            ConsumerOptions options = ConsumerOptions.to(broker.address()).withOrder(Order.NONE).withMaxLeases(2);
            List<Future<Integer>> first = new ArrayList<>();
            ExecutorService threads = Executors.newCachedThreadPool();
            for (int n = 0; n < members; n++) {
                first.add(threads.submit(() -> firstOf(options, without)));
            }
            threads.shutdown();
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            int produced = 0;
            while (!without.await(20, TimeUnit.MILLISECONDS) && System.nanoTime() < deadline) {
                produce(broker.address(), produced, produced + 40, 40);
                produced += 40;
            }
            Set<Integer> different = new HashSet<>();
            for (Future<Integer> each : first) {
                different.add(each.get());
            }
            assertEquals(members, different.size(), "a record goes to one member: " + different);
        }
    }

    /** The first record of a new member, which stays until all have theirs. */
    private static int firstOf(ConsumerOptions options, CountDownLatch without) throws Exception {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        try (Consumer consumer = new Consumer("s", "g", options)) {
            ConsumedBatch batch = null;
            while (batch == null) {
                assertTrue(System.nanoTime() < deadline, without.getCount() + " members got nothing");
                batch = consumer.next(SOON);
            }
            without.countDown();
            while (!without.await(SOON.toMillis(), TimeUnit.MILLISECONDS)) {
                assertTrue(System.nanoTime() < deadline, without.getCount() + " members got nothing");
            }
            return number(batch.records().get(0));
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"LANE", "KEY"})
    void keysKeepTheirOrderWhileLanesGrow(Order order) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address())) {
            admin.createStream("s", 2, 1);
            Members members = new Members();
            members.start(3, ConsumerOptions.to(broker.address()).withOrder(order).withCommitInterval(Duration.ofMillis(20)));
            int[] partitions = {6, 12};
            for (int round = 0; round < 3; round++) {
                produce(broker.address(), round * 3_000, round * 3_000 + 3_000, 30);
                if (round < partitions.length) {
                    admin.growStream("s", partitions[round]);
                }
            }
            members.await(9_000);
            assertEquals(0, members.again.get(), "nothing was lost on its way");
        }
    }

    /** Three members share one lane's keys; what each passes over is committed, though it commits by hand. */
    @Test
    void theKeysOfALaneGoToSeveralMembers() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address())) {
            admin.createStream("s", 1, 1);
            ConsumerOptions options = ConsumerOptions.to(broker.address()).withOrder(Order.KEY).withCommitInterval(Duration.ZERO)
                    .withSession(Duration.ofSeconds(3));
            List<Consumer> members = new ArrayList<>();
            for (int n = 0; n < 3; n++) {
                members.add(new Consumer("s", "g", options));
            }
            long all = 0;
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            while (all != -1L || !members.stream().allMatch(ConsumerTest::hasItsShare)) {
                all = members.stream().flatMap(member -> member.leases().stream())
                        .mapToLong(lease -> lease.slices().bits()).reduce(0, (one, other) -> one | other);
                assertTrue(System.nanoTime() < deadline, "slices that are leased: " + Long.toBinaryString(all));
                Thread.onSpinWait();
            }
            // Of one key: two members get nothing, and what they pass over counts.
            produce(broker.address(), 0, 200, 1);
            int slice = Slices.of(bytes("key-0"), 0);
            int seen = 0;
            while (seen < 200) {
                for (Consumer member : members) {
                    ConsumedBatch batch = member.next(Duration.ofMillis(1));
                    if (batch != null) {
                        assertTrue(batch.lease().slices().contains(slice), batch.lease().toString());
                        assertEquals(seen, number(batch.records().get(0)));
                        seen += batch.records().size();
                        member.commit(batch);
                    }
                }
            }
            while (admin.group("g").summary().lag() > 0) {
                for (Consumer member : members) {
                    assertNull(member.next(Duration.ofMillis(1)));
                }
            }
            for (Consumer member : members) {
                member.close();
            }
        }
    }

    /** Twenty or so of 64 slices. */
    private static boolean hasItsShare(Consumer member) {
        int slices = member.leases().stream().mapToInt(lease -> Long.bitCount(lease.slices().bits())).sum();
        return slices >= 18 && slices <= 26;
    }

    @Test
    void slicesAreThoseOfOtherClients() {
        assertEquals(List.of(0, 1, 63), List.of(Slices.of(null, 0), Slices.of(null, 65), Slices.of(null, 127)));
        assertEquals(Partitions.keyHash(bytes("abc")) >> 25, Slices.of(bytes("abc"), 1));
        Slices some = Slices.leased(0b110L | 1L << 63, 100, List.of(0L, 64L, 1L));
        for (byte[] key : List.of(bytes("a"), bytes("b"), bytes("c"), bytes("d"))) {
            assertEquals(some.contains(Slices.of(key, 5)), some.contains(key, 1_000));
        }
        // Without a key: slices 1, 2 and 63 of the ordinal.
        assertTrue(some.contains(null, 129) && !some.contains(null, 65), "1 from 100 on");
        assertTrue(some.contains(null, 194) && !some.contains(null, 130), "2 from 164 on");
        assertTrue(some.contains(null, 127) && !some.contains(null, 128) && !some.contains(null, 63), "63 from 101 on");
        assertTrue(Slices.ALL.contains(null, 0) && Slices.ALL.contains(63));
        for (int shares = 1; shares <= Slices.COUNT; shares++) {
            long all = 0;
            for (int share = 0; share < shares; share++) {
                Slices one = Slices.share(share, shares);
                assertTrue(one.count() >= Slices.COUNT / shares && one.count() <= Slices.COUNT / shares + 1, one.toString());
                assertEquals(0, all & one.bits());
                all |= one.bits();
            }
            assertEquals(-1, all);
        }
        assertTrue(!Slices.share(0, 1).areShared() && Slices.share(0, 2).areShared());
        assertThrows(IllegalArgumentException.class, () -> ConsumerOptions.to("h:1").withMaxLeases(2).withOrder(Order.KEY));
    }

    @ParameterizedTest
    @EnumSource(Order.class)
    void theLagIsWhatIsLeftOfItsLeases(Order order) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address())) {
            admin.createStream("s", 1, 1);
            for (int batch = 0; batch < 3; batch++) {
                produce(broker.address(), batch * 10, batch * 10 + 10, 1);
            }
            try (Consumer consumer = new Consumer("s", "g", ConsumerOptions.to(broker.address()).withOrder(order))) {
                for (int seen = 0; seen < 30; ) {
                    ConsumedBatch batch = consumer.next(PATIENCE);
                    seen += batch.records().size();
                    assertEquals(30 - seen, consumer.lag());
                }
                assertNull(consumer.next(SOON));
                assertEquals(0, consumer.lag());
            }
        }
    }

    @Test
    void whatIsNotCommittedIsDeliveredAgain() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address())) {
            admin.createStream("s", 1, 1);
            for (int batch = 0; batch < 10; batch++) {
                produce(broker.address(), batch * 10, batch * 10 + 10, 1);
            }
            ConsumerOptions byHand = ConsumerOptions.to(broker.address()).withCommitInterval(Duration.ZERO);
            long committed;
            try (Consumer consumer = new Consumer("s", "g", byHand)) {
                ConsumedBatch first = consumer.next(PATIENCE);
                assertEquals(0, number(first.records().get(0)));
                consumer.commit(first);
                committed = first.next();
                assertTrue(committed < 100, "there are more batches than one");
                consumer.next(PATIENCE);
            }
            try (Consumer consumer = new Consumer("s", "g", byHand)) {
                ConsumedBatch second = consumer.next(PATIENCE);
                assertEquals(committed, second.records().get(0).ordinal());
                consumer.mark(second);
                committed = second.next();
            }
            try (Consumer consumer = new Consumer("s", "g", byHand)) {
                assertEquals(committed, consumer.next(PATIENCE).records().get(0).ordinal());
            }
        }
    }

    @Test
    void aMemberThatStandsStillLosesItsLeasesAndHearsOfIt() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address())) {
            admin.createStream("s", 1, 1);
            produce(broker.address(), 0, 100, 1);
            ConsumerOptions options = ConsumerOptions.to(broker.address()).withCommitInterval(Duration.ZERO);
            try (Consumer still = new Consumer("s", "g", options.withSession(Duration.ofSeconds(1)))) {
                // Nobody else is there, so that it has the lane.
                ConsumedBatch held = still.next(PATIENCE);
                // The heir's own session is long: it does not end while the machine holds it up.
                try (Consumer heir = new Consumer("s", "g", options.withSession(PATIENCE))) {
                    synchronized (still.lock) {
                        ConsumedBatch again = heir.next(PATIENCE);
                        assertEquals(0, again.records().get(0).ordinal());
                        heir.commit(again);
                    }
                    KeraException stale = assertThrows(KeraException.class, () -> still.commit(held));
                    assertEquals(ErrorCodes.STALE_LEASE, stale.code());
                }
            }
        }
    }

    @Test
    void whatCannotBeJoinedIsRefused() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address())) {
            ConsumerOptions options = ConsumerOptions.to(broker.address());
            assertEquals(ErrorCodes.UNKNOWN_STREAM,
                    assertThrows(KeraException.class, () -> new Consumer("s", "g", options)).code());
            admin.createStream("s", 1, 1);
            Consumer consumer = new Consumer("s", "g", options);
            KeraException conflict = assertThrows(
                    KeraException.class, () -> new Consumer("s", "g", options.withOrder(Order.NONE)));
            assertTrue(conflict.getMessage().contains("order=lane"), conflict.getMessage());
            admin.deleteStream("s");
            IOException gone = assertThrows(IOException.class, () -> consumer.next(PATIENCE));
            assertTrue(gone.getMessage().contains("no stream is named") || gone.getMessage().contains("does not exist"), gone.getMessage());
            assertThrows(IOException.class, consumer::close);
            assertThrows(IOException.class, () -> consumer.next(SOON));
        }
    }

    @Test
    void aGroupBeginsWhereItIsTold() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = admin(broker.address())) {
            admin.createStream("s", 1, 1);
            produce(broker.address(), 0, 10, 1);
            Map<String, StartAt> starts = new HashMap<>();
            starts.put("latest", StartAt.LATEST);
            starts.put("later", StartAt.timestamp(System.currentTimeMillis() + 1_000_000));
            List<Consumer> consumers = new ArrayList<>();
            for (Map.Entry<String, StartAt> start : starts.entrySet()) {
                consumers.add(new Consumer("s", start.getKey(), ConsumerOptions.to(broker.address()).withStart(start.getValue())));
            }
            produce(broker.address(), 10, 11, 1);
            Set<Integer> first = new HashSet<>();
            for (Consumer consumer : consumers) {
                first.add(number(consumer.next(PATIENCE).records().get(0)));
                consumer.close();
            }
            assertEquals(Set.of(10), first);
        }
    }
}
