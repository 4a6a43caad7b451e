package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Generations;
import io.kera.client.Generations.Barrier;
import io.kera.client.Generations.Generation;
import io.kera.client.LanePosition;
import io.kera.client.Seeds;
import io.kera.flink.LanePlan.Bounds;
import io.kera.flink.LanePlan.LaneId;
import io.kera.flink.RangePlan.State;
import io.kera.flink.RangePlan.Uncut;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class RangePlanTest {
    private static final int SEEDS = 1_500;

    private enum Planted {
        NONE,
        /** The checkpoint does not have how far a lane was cut. */
        RANGE_CUT_TWICE_AFTER_RESTORE,
        /** An answer that comes late cuts a lane once more. */
        LATE_CUT_TAKEN,
        /** What a failed reader was given since the last checkpoint is not given back. */
        RANGES_NOT_TAKEN_BACK,
        /** What readers hold is taken for read when positions are pinned. */
        HELD_RANGES_NOT_PINNED,
        /** What a read gives of a batch from before the position is emitted too. */
        BELOW_A_START_DELIVERED
    }

    /** A cut that is on its way from a broker. */
    private record Late(Uncut lane, long start, long end) {}

    private static final class Checkpoint {
        private State plan;
        private final List<List<LaneSplit>> readers = new ArrayList<>();
        private final Map<String, Integer> passed = new HashMap<>();
    }

    /**
     * A job that reads ranges. Barriers pass at once here: what was emitted before a checkpoint has passed. A checkpoint
     * is complete when it is taken.
     */
    private static final class Job {
        private final Random dice;
        private final Planted planted;
        private final ModelStream stream;
        private final boolean bounded;
        private final int expected;
        /** Records from before the time at which the job begins. */
        private final int skipped;
        /** The time at which the job begins. */
        private final int from;
        private RangePlan plan;
        private List<Map<String, LaneSplit>> readers;
        private List<List<LaneSplit>> assignedSince;
        private final Deque<Late> late = new ArrayDeque<>();
        private Map<String, Integer> passed = new HashMap<>();
        private Checkpoint last;

        Job(long seed, Planted planted) {
            dice = new Random(seed);
            this.planted = planted;
            stream = new ModelStream(dice, 1 + dice.nextInt(2), 2, 5);
            bounded = dice.nextInt(3) == 0;
            for (int n = dice.nextInt(80); n > 0; n--) {
                stream.append();
            }
            from = stream.someTime();
            skipped = Arrays.stream(stream.before(from)).sum();
            expected = stream.total() - skipped;
            plan = RangePlan.begin("s", stream.generations(), stream.bounds(from), bounded);
            restart(1 + dice.nextInt(4));
            check();
        }

        private void restart(int parallelism) {
            readers = new ArrayList<>();
            assignedSince = new ArrayList<>();
            for (int n = 0; n < parallelism; n++) {
                readers.add(new TreeMap<>());
                assignedSince.add(new ArrayList<>());
            }
        }

        void play() {
            for (int move = 0; move < 400; move++) {
                step();
            }
            for (int round = 0; round < 5_000 && passed.size() < total(); round++) {
                plan.grown(stream.generations());
                cut();
                deliver();
                assign(dice.nextInt(readers.size()));
                readers.forEach(this::read);
            }
            assertEquals(total(), passed.size(), "records that passed");
            passed.forEach((record, times) -> assertEquals(1, times, record));
        }

        private int total() {
            return bounded ? expected : stream.total() - skipped;
        }

        private void step() {
            switch (dice.nextInt(12)) {
                case 0 -> stream.append();
                case 1 -> {
                    if (dice.nextInt(20) == 0) {
                        stream.grow();
                    }
                    plan.grown(stream.generations());
                }
                case 2, 3 -> cut();
                case 4, 5 -> deliver();
                case 6, 7 -> assign(dice.nextInt(readers.size()));
                case 8, 9 -> read(readers.get(dice.nextInt(readers.size())));
                case 10 -> check();
                default -> {
                    if (dice.nextInt(8) == 0) {
                        fail();
                    }
                }
            }
        }

        private void cut() {
            List<Uncut> lanes = plan.uncut();
            if (lanes.isEmpty()) {
                return;
            }
            Uncut lane = lanes.get(dice.nextInt(lanes.size()));
            LaneSplit whole = new LaneSplit("s", lane.streamlet(), lane.lane(), 0, lane.next(), LaneSplit.UNBOUNDED, false);
            List<ModelStream.Item> items = stream.batch(whole, lane.next());
            if (!items.isEmpty()) {
                late.add(new Late(lane, items.get(0).ordinal(), items.get(items.size() - 1).ordinal() + 1));
            }
        }

        private void deliver() {
            Late answer = late.poll();
            if (answer == null) {
                return;
            }
            Uncut lane = answer.lane();
            if (planted == Planted.LATE_CUT_TAKEN) {
                for (Uncut now : plan.uncut()) {
                    if (now.streamlet() == lane.streamlet() && now.lane() == lane.lane()) {
                        lane = now;
                    }
                }
                plan.takeBack(List.of(LaneSplit.range("s", lane.streamlet(), lane.lane(), answer.start(), answer.end())));
            }
            plan.cut(lane, answer.start(), answer.end());
        }

        private void assign(int reader) {
            LaneSplit range = readers.get(reader).isEmpty() ? plan.take() : null;
            if (range != null) {
                readers.get(reader).put(range.splitId(), range);
                assignedSince.get(reader).add(range);
            }
        }

        private void read(Map<String, LaneSplit> splits) {
            for (String id : List.copyOf(splits.keySet())) {
                LaneSplit split = splits.get(id);
                List<ModelStream.Item> items = stream.batch(split, split.position());
                long next = split.end();
                for (ModelStream.Item item : items) {
                    boolean isBelow = item.ordinal() < split.position() && planted != Planted.BELOW_A_START_DELIVERED;
                    if (!isBelow && item.ordinal() < split.end()) {
                        passed.merge(item.key() + " " + item.count(), 1, Integer::sum);
                        next = item.ordinal() + 1;
                    }
                }
                if (next >= split.end()) {
                    splits.remove(id);
                } else {
                    splits.put(id, split.at(next));
                }
            }
        }

        private void check() {
            Checkpoint checkpoint = new Checkpoint();
            checkpoint.plan = plan.snapshot();
            if (planted == Planted.RANGE_CUT_TWICE_AFTER_RESTORE && last != null) {
                checkpoint.plan = new State("s", checkpoint.plan.streamlets(), bounded, last.plan.lanes(), checkpoint.plan.pending());
            }
            readers.forEach(splits -> checkpoint.readers.add(List.copyOf(splits.values())));
            checkpoint.passed.putAll(passed);
            assignedSince.forEach(List::clear);
            last = checkpoint;
            pin(checkpoint);
        }

        /** No record is below its lane's pin that has not passed. */
        private void pin(Checkpoint checkpoint) {
            List<LaneSplit> splits = checkpoint.readers.stream().flatMap(List::stream).toList();
            List<PositionsTaken.Taken> held = planted == Planted.HELD_RANGES_NOT_PINNED ? List.of() : PositionsTaken.of(1, splits).splits();
            List<LanePosition> needed = RangePlan.needed(checkpoint.plan, held);
            assertEquals(checkpoint.plan.lanes().size(), needed.size());
            for (LanePosition lane : needed) {
                // What the job does not read, as it is from before its start or behind its end, is nobody's.
                Uncut own = checkpoint.plan.lanes().stream()
                        .filter(each -> each.streamlet() == lane.streamlet() && each.lane() == lane.lane()).findAny().orElseThrow();
                assertTrue(lane.ordinal() <= own.next(), "above what was cut");
                stream.items(lane.streamlet(), lane.lane()).stream()
                        .filter(item -> item.ordinal() < lane.ordinal() && item.time() >= from)
                        .forEach(item -> assertTrue(passed.containsKey(item.key() + " " + item.count()), "pinned above " + item));
            }
            if (RangePlan.isDone(checkpoint.plan, held)) {
                assertEquals(total(), passed.size(), "records that passed when all is read");
            }
        }

        private void fail() {
            boolean whole = dice.nextBoolean();
            List<List<LaneSplit>> back = assignedSince;
            restart(whole ? 1 + dice.nextInt(4) : readers.size());
            int next = 0;
            for (List<LaneSplit> splits : last.readers) {
                for (LaneSplit split : splits) {
                    readers.get(next % readers.size()).put(split.splitId(), split);
                }
                next++;
            }
            passed = new HashMap<>(last.passed);
            if (whole) {
                // Answers to the enumerator of before go nowhere.
                late.clear();
                plan = RangePlan.restore(last.plan);
            } else if (planted != Planted.RANGES_NOT_TAKEN_BACK) {
                back.forEach(plan::takeBack);
            }
            if (whole && last.readers.size() != readers.size()) {
                // The readers of now are those of the checkpoint.
                Checkpoint rebased = new Checkpoint();
                rebased.plan = last.plan;
                rebased.passed.putAll(last.passed);
                readers.forEach(splits -> rebased.readers.add(List.copyOf(splits.values())));
                last = rebased;
            }
        }
    }

    @Test
    void eachRecordPassesOnceWhateverFails() {
        Seeds.play(SEEDS, seed -> new Job(seed, Planted.NONE).play());
    }

    @ParameterizedTest
    @EnumSource(value = Planted.class, mode = EnumSource.Mode.EXCLUDE, names = "NONE")
    void plantedDefectsAreFound(Planted planted) {
        Seeds.find(planted, SEEDS, seed -> new Job(seed, planted).play());
    }

    @Test
    void aJumpOfOrdinalsMakesNoRange() {
        Generations one = ModelStream.grown(new Generation(0, 1, Barrier.NONE, List.of()));
        Map<LaneId, Long> ends = Map.of(new LaneId(0, 0), 1L << 33);
        RangePlan plan = RangePlan.begin("s", one, new Bounds(Map.of(), ends), true);
        plan.cut(plan.uncut().get(0), 0, 10);
        assertEquals(LaneSplit.range("s", 0, 0, 0, 10), plan.take());
        // What is stored next begins behind the end that the job has: between them is only a gap.
        plan.cut(plan.uncut().get(0), (1L << 33) + 5, (1L << 33) + 9);
        assertNull(plan.take());
        assertTrue(plan.isAssigned());
    }
}
