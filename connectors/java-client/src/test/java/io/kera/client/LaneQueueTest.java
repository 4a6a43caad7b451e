package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.LaneQueue.Step;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A lane's batches against a broker that loses, delays and refuses: played from seeds. */
class LaneQueueTest {
    private static final int SEEDS = 3_000;
    private static final long MILLI = 1_000_000;

    /** A lane as its owner has it: what is stored, and the last batches of the producer. */
    private static final class ModelLane {
        private final List<Integer> stored = new ArrayList<>();
        private final Deque<long[]> remembered = new ArrayDeque<>();
        private int epoch = -1;
        private int expected;

        AppendReply append(byte[] bytes, List<Integer> records) {
            ByteBuffer head = ByteBuffer.wrap(bytes);
            int of = head.getShort(51);
            int sequence = head.getInt(53);
            if (of < epoch) {
                return refused(14);
            }
            if (of > epoch) {
                if (sequence != 0) {
                    return refused(epoch < 0 ? ErrorCodes.UNKNOWN_PRODUCER : ErrorCodes.SEQUENCE_GAP);
                }
                epoch = of;
                expected = 0;
                remembered.clear();
            }
            for (long[] batch : remembered) {
                if (batch[0] == sequence) {
                    return new AppendReply(0, "", 0, batch[1], 0, 0);
                }
            }
            if (sequence != expected) {
                return refused(ErrorCodes.SEQUENCE_GAP);
            }
            long base = stored.size();
            stored.addAll(records);
            expected = sequence + records.size() & Integer.MAX_VALUE;
            remembered.add(new long[] {sequence, base});
            if (remembered.size() > LaneQueue.MOST_IN_FLIGHT) {
                remembered.remove();
            }
            return new AppendReply(0, "", 0, base, 0, 0);
        }

        /** The broker forgets the producer, as one that has been silent for long. */
        void forget() {
            epoch = -1;
            expected = 0;
            remembered.clear();
        }

        private static AppendReply refused(int code) {
            return new AppendReply(code, "refused", 0, 0, 0, 0);
        }
    }

    /** An attempt on its way: its bytes as they were sent. */
    private record OnItsWay(SealedBatch batch, int attempt, byte[] bytes, List<Integer> records) {}

    private static final class Game {
        private final Random dice;
        private final LaneQueue queue;
        private final ModelLane lane = new ModelLane();
        /** By connection, in order; those of connections that were lost may still arrive. */
        private final List<Deque<OnItsWay>> connections = new ArrayList<>();
        private final Map<SealedBatch, List<Integer>> contents = new HashMap<>();
        private final Set<Integer> acknowledged = new HashSet<>();
        private final Set<Integer> lost = new HashSet<>();
        private final Set<Integer> open = new HashSet<>();
        private final int refusals;
        /** How long a batch is tried, and how often what nobody waits for any more arrives after all. */
        private final long patience;
        private final int stragglers;
        private final boolean forgets;
        private long now = 1;
        private int next;

        Game(long seed, int refusals) {
            dice = new Random(seed);
            this.refusals = refusals;
            patience = new int[] {40, 120, 400}[dice.nextInt(3)] * MILLI;
            stragglers = 1 + dice.nextInt(4);
            forgets = dice.nextInt(3) == 0;
            queue = new LaneQueue(0, false, 4711, (short) 0);
            connections.add(new ArrayDeque<>());
        }

        private void add() {
            int count = 1 + dice.nextInt(3);
            BatchBuilder builder = new BatchBuilder(1 << 10);
            List<Integer> records = new ArrayList<>();
            for (int n = 0; n < count; n++) {
                builder.add(null, new byte[] {1}, List.of(), 0);
                records.add(next++);
            }
            byte[] bytes = builder.finish(Compression.NONE);
            SealedBatch batch = new SealedBatch(bytes, count, List.of(), now + patience, 0, 0);
            contents.put(batch, records);
            queue.add(batch);
        }

        private void send() {
            for (SealedBatch batch : queue.takeToSend(true)) {
                Deque<OnItsWay> connection = connections.get(connections.size() - 1);
                connection.add(new OnItsWay(batch, batch.attempt, batch.bytes.clone(), contents.get(batch)));
            }
        }

        /** One request arrives. Of a connection that is gone nobody hears the answer. */
        private void arrive(int connection) {
            OnItsWay request = connections.get(connection).poll();
            if (request == null) {
                return;
            }
            boolean heard = connection == connections.size() - 1;
            if (dice.nextInt(100) < refusals) {
                // Refused before it had a place: for good, or for now.
                int code = dice.nextBoolean() ? 7 : 18;
                answer(request, ModelLane.refused(code), heard);
                return;
            }
            AppendReply reply = lane.append(request.bytes(), request.records());
            if (dice.nextInt(20) == 0) {
                // It has its place, and the broker cannot tell when it is safe.
                reply = new AppendReply(ErrorCodes.NOT_ENOUGH_COPIES, "too few", 0, 0, 0, AppendReply.MAY_BE_PLACED);
            }
            answer(request, reply, heard);
        }

        private void answer(OnItsWay request, AppendReply reply, boolean heard) {
            if (heard) {
                queue.answered(request.batch(), request.attempt(), reply);
                take();
            }
        }

        private void loseConnection() {
            Deque<OnItsWay> gone = connections.get(connections.size() - 1);
            connections.add(new ArrayDeque<>());
            if (dice.nextBoolean()) {
                queue.abandonAttempts();
            } else {
                // Attempts whose request has arrived and whose answer was lost are among those of the queue.
                for (SealedBatch batch : contents.keySet()) {
                    queue.answered(batch, batch.attempt, AppendReply.lost(new IOException("cut")));
                }
            }
            if (dice.nextInt(stragglers) == 0) {
                // The broker never sees what was on its way.
                gone.clear();
            }
            take();
        }

        private void take() {
            for (SealedBatch batch : queue.takeDone()) {
                List<Integer> records = contents.remove(batch);
                if (batch.error == null) {
                    assertEquals(records.get(0), lane.stored.get((int) batch.first.ordinal()), "where it is said to be");
                    acknowledged.addAll(records);
                } else {
                    (batch.error.isUncertain() ? open : lost).addAll(records);
                }
            }
        }

        /**
         * Not while a first batch of an epoch that is stored may come again: brokers remember longer than that is tried,
         * and could not tell it from a new producer's.
         */
        private void forget() {
            boolean first = false;
            for (Deque<OnItsWay> connection : connections) {
                for (OnItsWay request : connection) {
                    first |= isFirst(request.bytes()) && lane.stored.contains(request.records().get(0));
                }
            }
            for (Map.Entry<SealedBatch, List<Integer>> batch : contents.entrySet()) {
                first |= isFirst(batch.getKey().bytes) && lane.stored.contains(batch.getValue().get(0));
            }
            if (!first) {
                lane.forget();
            }
        }

        private static boolean isFirst(byte[] bytes) {
            return ByteBuffer.wrap(bytes).getInt(53) == 0;
        }

        private void recover() {
            Step step = queue.recover(now);
            take();
            assertTrue(step != Step.STALE);
            if (step == Step.RENEW) {
                queue.renewed(4712, (short) 0);
            }
        }

        void play() {
            for (int move = 0; move < 300; move++) {
                switch (dice.nextInt(10)) {
                    case 0, 1 -> add();
                    case 2, 3 -> send();
                    case 4, 5, 6 -> arrive(connections.size() - 1);
                    case 7 -> {
                        for (int n = dice.nextInt(2 * stragglers); n >= 0; n--) {
                            arrive(dice.nextInt(connections.size()));
                        }
                        if (forgets && dice.nextInt(4) == 0) {
                            forget();
                        }
                    }
                    case 8 -> {
                        now += dice.nextInt(40) * MILLI;
                        recover();
                        if (dice.nextInt(4) == 0) {
                            queue.expire(now);
                            take();
                        }
                    }
                    default -> {
                        if (dice.nextInt(3) == 0) {
                            loseConnection();
                        }
                    }
                }
            }
            finish();
        }

        /** The broker answers again, and everything comes to its end. */
        private void finish() {
            for (int round = 0; !queue.isEmpty(); round++) {
                assertTrue(round < 10_000, "it comes to no end");
                recover();
                send();
                while (!connections.get(connections.size() - 1).isEmpty()) {
                    OnItsWay request = connections.get(connections.size() - 1).remove();
                    answer(request, lane.append(request.bytes(), request.records()), true);
                }
                now += 20 * MILLI;
                if (round % 10 == 9) {
                    loseConnection();
                }
                queue.expire(now);
                take();
            }
            // What is still on its way arrives last of all.
            connections.forEach(each -> each.forEach(request -> lane.append(
                    request.bytes(), request.records())));
            check();
        }

        private void check() {
            Map<Integer, Integer> times = new HashMap<>();
            int last = -1;
            for (int record : lane.stored) {
                times.merge(record, 1, Integer::sum);
                assertTrue(record > last || open.contains(record), "order: " + record + " behind " + last);
                last = Math.max(last, record);
            }
            times.forEach((record, count) -> assertEquals(1, count, "record " + record + " is stored twice"));
            acknowledged.forEach(record -> assertTrue(times.containsKey(record), record + " was acknowledged"));
            lost.forEach(record -> assertFalse(times.containsKey(record), record + " was said not to be stored"));
            assertEquals(next, acknowledged.size() + lost.size() + open.size(), "each is told of once");
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 10})
    void recordsAreStoredOnceAndInOrderWhateverIsLost(int refusals) {
        Seeds.play(SEEDS, seed -> new Game(seed, refusals).play());
    }

    private static SealedBatch batch() {
        BatchBuilder builder = new BatchBuilder(1 << 10);
        builder.add(null, new byte[] {1}, List.of(), 0);
        return new SealedBatch(builder.finish(Compression.NONE), 1, List.of(), Long.MAX_VALUE, 0, 0);
    }

    @Test
    void whatIsRefusedForGrownLanesIsQuietAndKeepsItsSequence() {
        LaneQueue queue = new LaneQueue(0, false, 1, (short) 0);
        SealedBatch first = batch();
        SealedBatch second = batch();
        queue.add(first);
        queue.add(second);
        queue.takeToSend(true);
        assertFalse(queue.isQuiet(), "attempts are under way");
        queue.answered(first, 1, new AppendReply(ErrorCodes.STALE_LANES, "grown", 0, 0, 0, 0));
        queue.answered(second, 1, new AppendReply(ErrorCodes.SEQUENCE_GAP, "gap", 0, 0, 0, 0));
        assertEquals(Step.STALE, queue.recover(1));
        assertTrue(queue.isQuiet());
        assertEquals(List.of(first, second), queue.takeAll());
        SealedBatch next = batch();
        queue.add(next);
        queue.takeToSend(true);
        assertEquals(0, next.baseSequence);
        assertEquals(0, ByteBuffer.wrap(next.bytes).getShort(51), "the same epoch: nothing is on its way");
    }

    @Test
    void anOwnerWhoseAnswerWasLostIsAskedWithTheSameSequence() {
        LaneQueue queue = new LaneQueue(0, false, 1, (short) 0);
        SealedBatch batch = batch();
        queue.add(batch);
        queue.takeToSend(true);
        byte[] sent = batch.bytes.clone();
        queue.answered(batch, 1, AppendReply.lost(new IOException("cut")));
        assertEquals(Step.SEND, queue.recover(1));
        assertEquals(List.of(batch), queue.takeToSend(true));
        assertEquals(ByteBuffer.wrap(sent), ByteBuffer.wrap(batch.bytes));
    }

    @Test
    void aLaneWhoseAcknowledgedBatchesAreMissingFails() {
        LaneQueue queue = new LaneQueue(0, false, 1, (short) 0);
        SealedBatch batch = batch();
        queue.add(batch);
        queue.takeToSend(true);
        queue.answered(batch, 1, new AppendReply(ErrorCodes.SEQUENCE_GAP, "gap", 0, 0, 0, 0));
        queue.recover(1);
        assertEquals(List.of(batch), queue.takeDone());
        assertFalse(queue.failed().isUncertain());
    }
}
