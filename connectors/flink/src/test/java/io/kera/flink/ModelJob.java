package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.LanePosition;
import io.kera.client.Slices;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;

/**
 * A job as Flink runs it: readers with an inbox from the enumerator and a channel to an operator by key, aligned
 * checkpoints, failures of tasks and of the JobManager. Played move by move from a seed.
 */
final class ModelJob {
    /** Defects that the play must find. */
    enum Planted {
        NONE,
        /** A reader forgets what it has finished once it has said so. */
        UNACKNOWLEDGED_FINISH_DROPPED,
        /** A report opens a barrier before a checkpoint has it. */
        BARRIER_OPENED_ON_REPORT,
        /** What a failed reader had reported since the last checkpoint stays finished. */
        FINISH_NOT_TAKEN_BACK,
        /** What a read gives of a batch from before the position is emitted too. */
        BELOW_A_START_DELIVERED,
        /** A reader emits the keys of others. */
        SLICES_IGNORED,
        /** Positions of a checkpoint that may not complete are pinned. */
        OPEN_CHECKPOINT_PINNED,
        /** A job that goes on from a checkpoint looks anew where the stream begins. */
        START_FORGOTTEN
    }

    private sealed interface Message {}

    private record Assigned(List<LaneSplit> splits) implements Message {}

    private record Recorded(List<String> ids) implements Message {}

    private record Barrier(long checkpoint) implements Message {}

    private record Emitted(ModelStream.Item item) implements Message {}

    private static final class Reader {
        private final Map<String, LaneSplit> splits = new LinkedHashMap<>();
        private final FinishedLedger ledger = new FinishedLedger();
        private final Deque<Message> inbox = new ArrayDeque<>();
        private final Deque<Message> channel = new ArrayDeque<>();
        /** Reports that are on their way to the enumerator. */
        private final Deque<List<String>> outbox = new ArrayDeque<>();
        private boolean blocked;
    }

    private static final class Checkpoint {
        private LanePlan.State plan;
        private final Map<Integer, List<LaneSplit>> readers = new HashMap<>();
        private int[] counts;
        /** Splits that were assigned before the enumerator's state was taken. */
        private boolean told;
    }

    private final Random dice;
    private final ModelStream stream;
    private final Planted planted;
    private final boolean bounded;
    private final int shares;
    private LanePlan plan;
    private List<Reader> readers = new ArrayList<>();
    /** By reader: what was assigned since which checkpoint was taken. */
    private final TreeMap<Long, Map<Integer, List<LaneSplit>>> assignedSince = new TreeMap<>();
    private final TreeMap<Long, Checkpoint> underWay = new TreeMap<>();
    private long completed;
    private Checkpoint last;
    private long nextCheckpoint = 1;
    private int[] counts;
    /** Records of each key from before the time at which the job begins. */
    private int[] before;

    /** @param shares of the keys of each lane; {@link LanePlan#UNSHARED}: none */
    ModelJob(long seed, Planted planted, int shares) {
        dice = new Random(seed);
        this.shares = shares;
        this.planted = planted;
        int streamlets = 1 + dice.nextInt(3);
        stream = new ModelStream(dice, streamlets, streamlets + dice.nextInt(3), 6);
        bounded = dice.nextInt(4) == 0;
        for (int n = dice.nextInt(60); n > 0; n--) {
            stream.append();
            if (dice.nextInt(25) == 0) {
                stream.grow();
            }
        }
        begin(1 + dice.nextInt(4));
    }

    private void begin(int parallelism) {
        int from = stream.someTime();
        before = stream.before(from);
        plan = LanePlan.begin("s", true, stream.generations(), stream.bounds(from), true, bounded, shares);
        counts = before.clone();
        readers = newReaders(parallelism);
        assignedSince.put(0L, new HashMap<>());
    }

    private static List<Reader> newReaders(int parallelism) {
        List<Reader> made = new ArrayList<>();
        for (int n = 0; n < parallelism; n++) {
            made.add(new Reader());
        }
        return made;
    }

    void play() {
        for (int move = 0; move < 600; move++) {
            switch (dice.nextInt(16)) {
                case 0 -> {
                    if (!bounded) {
                        stream.append();
                    }
                }
                case 1 -> {
                    if (!bounded && dice.nextInt(12) == 0) {
                        stream.grow();
                    }
                }
                case 2 -> plan.grown(stream.generations());
                case 3 -> assign();
                case 4, 5, 6, 7 -> step(any());
                case 8, 9, 10 -> operate(dice.nextInt(readers.size()));
                case 11 -> deliverReport(any());
                case 12 -> beginCheckpoint();
                case 13 -> completeCheckpoint();
                default -> {
                    if (dice.nextInt(25) == 0) {
                        if (dice.nextBoolean()) {
                            failTasks();
                        } else {
                            failJobManager();
                        }
                    }
                }
            }
        }
        finish();
    }

    private Reader any() {
        return readers.get(dice.nextInt(readers.size()));
    }

    /** Everything comes to rest: all records have passed, each once and in order. */
    private void finish() {
        for (int round = 0; round < 4_000 && !isDone(); round++) {
            plan.grown(stream.generations());
            assign();
            for (int n = 0; n < readers.size(); n++) {
                step(readers.get(n));
                operate(n);
                deliverReport(readers.get(n));
            }
            if (round % 20 == 0) {
                beginCheckpoint();
            }
            completeCheckpoint();
        }
        int passed = 0;
        for (int count : counts) {
            passed += count;
        }
        assertEquals(stream.total(), passed, "records that passed");
        if (bounded) {
            assertTrue(plan.isAssigned(), "no more splits");
        }
        for (Reader reader : readers) {
            assertEquals(List.of(), reader.ledger.splits(), "finished splits that are kept for ever");
        }
    }

    private boolean isDone() {
        int passed = 0;
        for (int count : counts) {
            passed += count;
        }
        boolean quiet = readers.stream().allMatch(reader ->
                reader.ledger.splits().isEmpty() && reader.outbox.isEmpty() && reader.inbox.isEmpty());
        return passed == stream.total() && quiet && (!bounded || plan.isFinished());
    }

    private void assign() {
        plan.assign(readers.size(), reader -> true).forEach((reader, splits) -> {
            readers.get(reader).inbox.add(new Assigned(splits));
            assignedSince.values().forEach(each ->
                    each.computeIfAbsent(reader, any -> new ArrayList<>()).addAll(splits));
        });
    }

    /** A reader takes its next message, or reads on. */
    private void step(Reader reader) {
        if (!reader.inbox.isEmpty() && dice.nextBoolean()) {
            Message message = reader.inbox.remove();
            if (message instanceof Assigned assigned) {
                assigned.splits().forEach(split -> take(reader, split));
            } else if (message instanceof Recorded recorded) {
                reader.ledger.acknowledged(recorded.ids());
            } else if (message instanceof Barrier barrier) {
                Checkpoint taken = underWay.get(barrier.checkpoint());
                if (taken != null) {
                    List<LaneSplit> state = new ArrayList<>(reader.splits.values());
                    state.addAll(reader.ledger.splits());
                    taken.readers.put(readers.indexOf(reader), state);
                    if (planted == Planted.OPEN_CHECKPOINT_PINNED) {
                        state.forEach(split -> plan.reached(split.splitId(), split.position(), split.finished()));
                    }
                }
                reader.channel.add(barrier);
            }
            return;
        }
        if (reader.splits.isEmpty()) {
            return;
        }
        List<String> ids = List.copyOf(reader.splits.keySet());
        String id = ids.get(dice.nextInt(ids.size()));
        LaneSplit split = reader.splits.get(id);
        ModelStream.Read read = stream.read(split, split.position());
        for (ModelStream.Item item : read.items()) {
            boolean isOwn = planted == Planted.SLICES_IGNORED || Slices.ofBits(split.slices()).contains(ModelStream.slice(item.key()));
            if (isOwn && (item.ordinal() >= split.position() || planted == Planted.BELOW_A_START_DELIVERED)) {
                reader.channel.add(new Emitted(item));
            }
        }
        reader.splits.put(id, split.at(read.next()));
        if (read.finished()) {
            LaneSplit done = reader.splits.remove(id);
            reader.ledger.finished(done);
            report(reader, List.of(id));
        }
    }

    private void take(Reader reader, LaneSplit split) {
        if (split.finished()) {
            reader.ledger.finished(split);
            report(reader, List.of(split.splitId()));
        } else {
            assertTrue(reader.splits.put(split.splitId(), split) == null, "a split was assigned twice");
        }
    }

    private void report(Reader reader, List<String> ids) {
        reader.outbox.add(ids);
        if (planted == Planted.UNACKNOWLEDGED_FINISH_DROPPED) {
            reader.ledger.acknowledged(ids);
        }
    }

    private void deliverReport(Reader reader) {
        List<String> ids = reader.outbox.poll();
        if (ids == null) {
            return;
        }
        List<String> recorded = plan.finished(ids, readers.indexOf(reader));
        if (!recorded.isEmpty()) {
            reader.inbox.add(new Recorded(recorded));
        }
        if (planted == Planted.BARRIER_OPENED_ON_REPORT) {
            plan.snapshot(-1);
            plan.completed(-1);
        }
    }

    /** The operator takes the next message of a channel, unless it waits for the barriers of the others. */
    private void operate(int number) {
        Reader reader = readers.get(number);
        if (reader.blocked || reader.channel.isEmpty()) {
            return;
        }
        Message message = reader.channel.remove();
        if (message instanceof Emitted emitted) {
            ModelStream.Item item = emitted.item();
            assertEquals(counts[item.key()], item.count(), "records of key " + item.key());
            counts[item.key()]++;
        } else if (message instanceof Barrier barrier) {
            reader.blocked = true;
            if (readers.stream().allMatch(each -> each.blocked)) {
                readers.forEach(each -> each.blocked = false);
                Checkpoint taken = underWay.get(barrier.checkpoint());
                if (taken != null) {
                    taken.counts = counts.clone();
                }
            }
        }
    }

    private void beginCheckpoint() {
        if (!underWay.isEmpty()) {
            return;
        }
        Checkpoint checkpoint = new Checkpoint();
        long id = nextCheckpoint++;
        checkpoint.plan = plan.snapshot(id);
        assignedSince.put(id, new HashMap<>());
        underWay.put(id, checkpoint);
        // What the enumerator sends from here on comes behind the barrier.
        readers.forEach(reader -> reader.inbox.add(new Barrier(id)));
    }

    private void completeCheckpoint() {
        for (Map.Entry<Long, Checkpoint> each : underWay.entrySet()) {
            Checkpoint checkpoint = each.getValue();
            if (checkpoint.counts == null || checkpoint.readers.size() < readers.size()) {
                continue;
            }
            if (!checkpoint.told) {
                // It is complete; the enumerator hears of it later.
                checkpoint.told = true;
                last = checkpoint;
                completed = each.getKey();
                return;
            }
            underWay.remove(each.getKey());
            assignedSince.headMap(each.getKey(), false).clear();
            plan.completed(each.getKey()).forEach((reader, ids) -> readers.get(reader).inbox.add(new Recorded(ids)));
            pin(checkpoint);
            return;
        }
    }

    /** Tasks fail; the enumerator goes on, and hears of it after what had arrived. */
    private void failTasks() {
        for (Reader reader : readers) {
            while (dice.nextBoolean() && !reader.outbox.isEmpty()) {
                deliverReport(reader);
            }
        }
        hearOfCompleted();
        underWay.clear();
        Map<Integer, List<LaneSplit>> back = assignedSince.getOrDefault(completed, new HashMap<>());
        List<Reader> fresh = newReaders(readers.size());
        List<Reader> old = readers;
        readers = fresh;
        for (int n = 0; n < old.size(); n++) {
            if (last != null) {
                for (LaneSplit split : last.readers.getOrDefault(n, List.of())) {
                    take(fresh.get(n), split);
                }
            }
            if (planted != Planted.FINISH_NOT_TAKEN_BACK) {
                plan.takeBack(back.getOrDefault(n, List.of()), n);
            } else {
                plan.takeBack(back.getOrDefault(n, List.of()), -2);
            }
            back.remove(n);
        }
        counts = last == null ? before.clone() : last.counts.clone();
    }

    /** A checkpoint that is complete is told of before anything is restored from it. */
    private void hearOfCompleted() {
        if (last != null && underWay.containsKey(completed)) {
            Checkpoint checkpoint = underWay.remove(completed);
            assignedSince.headMap(completed, false).clear();
            plan.completed(completed);
            pin(checkpoint);
        }
    }

    /** What the enumerator would pin is what the checkpoint needs of each lane: nothing less, or it is lost, and nothing more. */
    private void pin(Checkpoint checkpoint) {
        Map<String, Long> positions = new HashMap<>();
        checkpoint.readers.values().forEach(splits -> splits.forEach(split -> positions.put(split.splitId(), split.position())));
        positions.forEach((id, ordinal) -> plan.reached(id, ordinal, false));
        Map<LanePlan.LaneId, Long> needed = new HashMap<>();
        for (LanePlan.PartState part : checkpoint.plan.parts()) {
            LaneSplit split = part.split();
            if (part.status() != LanePlan.Status.FINISHED) {
                needed.merge(new LanePlan.LaneId(split.streamlet(), split.lane()),
                        positions.getOrDefault(split.splitId(), split.position()), Math::min);
            }
        }
        for (LanePosition lane : plan.needed()) {
            LanePlan.LaneId id = new LanePlan.LaneId(lane.streamlet(), lane.lane());
            if (needed.containsKey(id)) {
                assertEquals(needed.remove(id), lane.ordinal(), "pinned of lane " + id);
            }
        }
        assertEquals(Map.of(), needed, "not pinned");
    }

    /** Everything begins anew from the last checkpoint, with another parallelism perhaps. */
    private void failJobManager() {
        underWay.clear();
        assignedSince.clear();
        int parallelism = 1 + dice.nextInt(4);
        if (last == null) {
            if (bounded || stream.total() > 0) {
                // The positions at the start are in no checkpoint yet: the job begins once more.
                begin(parallelism);
            }
            return;
        }
        plan = planted == Planted.START_FORGOTTEN
                ? LanePlan.begin("s", true, stream.generations(), stream.bounds(stream.someTime()), true, bounded, shares)
                : LanePlan.restore(last.plan, true);
        readers = newReaders(parallelism);
        int next = 0;
        for (List<LaneSplit> splits : last.readers.values()) {
            for (LaneSplit split : splits) {
                take(readers.get(next++ % parallelism), split);
            }
        }
        counts = last.counts.clone();
        assignedSince.put(completed, new HashMap<>());
        // It has its readers from here on.
        last = rebased(parallelism);
    }

    /** The checkpoint as the readers of now would have it. */
    private Checkpoint rebased(int parallelism) {
        Checkpoint checkpoint = new Checkpoint();
        checkpoint.plan = last.plan;
        checkpoint.counts = last.counts;
        checkpoint.told = true;
        for (int n = 0; n < parallelism; n++) {
            List<LaneSplit> state = new ArrayList<>(readers.get(n).splits.values());
            state.addAll(readers.get(n).ledger.splits());
            checkpoint.readers.put(n, state);
        }
        return checkpoint;
    }
}
