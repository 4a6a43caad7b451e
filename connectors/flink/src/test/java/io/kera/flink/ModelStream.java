package io.kera.flink;

import io.kera.client.Generations;
import io.kera.client.Generations.Barrier;
import io.kera.client.Generations.Generation;
import io.kera.client.LanePosition;
import io.kera.client.Partitions;
import io.kera.client.Slices;
import io.kera.flink.LanePlan.Bounds;
import io.kera.flink.LanePlan.LaneId;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/** A stream whose lanes grow, with keys that count up. Ordinals have gaps. */
final class ModelStream {
    /** The n-th record of a key, in the batch that begins at an ordinal. Times count the records of all lanes. */
    record Item(long ordinal, int key, int count, long batch, int time) {}

    /** What a read gives: records from a batch on that may begin below the position, and where to go on. */
    record Read(List<Item> items, long next, boolean finished) {}

    final int streamlets;
    final int keys;
    private final Random dice;
    private final List<Generation> generations = new ArrayList<>();
    private final Map<LaneId, List<Item>> lanes = new HashMap<>();
    private final Map<LaneId, Long> heads = new HashMap<>();
    /** Where each lane was at the last growth: no batch is of two generations. */
    private final Map<LaneId, Long> grew = new HashMap<>();
    private final int[] counts;
    private int time;

    ModelStream(Random dice, int streamlets, int partitions, int keys) {
        this.dice = dice;
        this.streamlets = streamlets;
        this.keys = keys;
        counts = new int[keys];
        generations.add(new Generation(0, partitions, Barrier.NONE, List.of()));
    }

    /** How the lanes of a stream with one streamlet grew. */
    static Generations grown(Generation... generations) {
        return new Generations(new byte[16], 1, List.of(generations));
    }

    private LaneId lane(int partition) {
        return new LaneId(Partitions.streamlet(partition, streamlets), Partitions.lane(partition, streamlets));
    }

    /** The slice of a key. */
    static int slice(int key) {
        return key * 13 % Slices.COUNT;
    }

    int partitions() {
        return generations.get(generations.size() - 1).partitions();
    }

    void append() {
        int key = dice.nextInt(keys);
        LaneId lane = lane((key * 7919) % partitions());
        long head = heads.getOrDefault(lane, 0L);
        List<Item> items = lanes.computeIfAbsent(lane, any -> new ArrayList<>());
        boolean jumps = dice.nextInt(20) == 0;
        if (jumps) {
            head += 1L << 32;
        }
        boolean begins = jumps || items.isEmpty() || grew.getOrDefault(lane, -1L) == head || dice.nextInt(3) == 0;
        long batch = begins ? head : items.get(items.size() - 1).batch();
        items.add(new Item(head, key, counts[key]++, batch, time++));
        heads.put(lane, head + 1);
    }

    void grow() {
        int before = partitions();
        int after = before + 1 + dice.nextInt(3);
        boolean moves = before % streamlets != 0 || after % streamlets != 0;
        List<LanePosition> boundaries = new ArrayList<>();
        for (int partition = 0; partition < before; partition++) {
            LaneId lane = lane(partition);
            boundaries.add(new LanePosition(lane.streamlet(), lane.lane(), heads.getOrDefault(lane, 0L)));
            grew.put(lane, heads.getOrDefault(lane, 0L));
        }
        Barrier barrier = moves ? Barrier.STREAM : Barrier.STREAMLET;
        generations.add(new Generation(generations.size(), after, barrier, boundaries));
    }

    Generations generations() {
        return new Generations(new byte[16], streamlets, List.copyOf(generations));
    }

    /** A time to begin at: that of the first record, of one in a batch's midst perhaps, or behind the last one. */
    int someTime() {
        return switch (dice.nextInt(3)) {
            case 0 -> 0;
            case 1 -> time;
            default -> dice.nextInt(time + 1);
        };
    }

    /** Where lanes begin at a time, and end now. */
    Bounds bounds(int from) {
        Map<LaneId, Long> starts = new HashMap<>();
        Map<LaneId, Long> ends = new HashMap<>();
        for (int partition = 0; partition < partitions(); partition++) {
            LaneId lane = lane(partition);
            long head = heads.getOrDefault(lane, 0L);
            ends.put(lane, head);
            starts.put(lane, lanes.getOrDefault(lane, List.of()).stream()
                    .filter(item -> item.time() >= from)
                    .mapToLong(Item::ordinal)
                    .findFirst()
                    .orElse(head));
        }
        return new Bounds(starts, ends);
    }

    /** How many records of each key are from before a time. */
    int[] before(int from) {
        int[] before = new int[keys];
        lanes.values().forEach(items -> items.stream().filter(item -> item.time() < from).forEach(item -> before[item.key()]++));
        return before;
    }

    int total() {
        return lanes.values().stream().mapToInt(List::size).sum();
    }

    /** The records of a lane. */
    List<Item> items(int streamlet, int lane) {
        return lanes.getOrDefault(new LaneId(streamlet, lane), List.of());
    }

    /**
     * The next few records of a lane from a position on, and those before it that are of the same batch; none if there are
     * none yet.
     */
    List<Item> batch(LaneSplit split, long position) {
        return fromBatch(split, position, 1 + dice.nextInt(4));
    }

    private List<Item> fromBatch(LaneSplit split, long position, int most) {
        List<Item> items = lanes.getOrDefault(new LaneId(split.streamlet(), split.lane()), List.of());
        List<Item> behind = items.stream().filter(item -> item.ordinal() >= position).limit(most).toList();
        if (behind.isEmpty()) {
            return behind;
        }
        long begin = behind.get(0).batch();
        List<Item> found = new ArrayList<>(items.stream()
                .filter(item -> item.ordinal() >= begin && item.ordinal() < position)
                .toList());
        found.addAll(behind);
        return found;
    }

    /** As a broker answers: a few records from a batch's begin on, and the end of the split's generation if it is reached. */
    Read read(LaneSplit split, long position) {
        LaneId lane = new LaneId(split.streamlet(), split.lane());
        long head = heads.getOrDefault(lane, 0L);
        long end = split.end() == LaneSplit.UNBOUNDED ? Long.MAX_VALUE : split.end();
        boolean ends = split.end() != LaneSplit.UNBOUNDED;
        if (split.generation() + 1 < generations.size()) {
            for (LanePosition each : generations.get(split.generation() + 1).boundaries()) {
                if (each.streamlet() == split.streamlet() && each.lane() == split.lane()) {
                    end = Math.min(end, each.ordinal());
                    ends = true;
                }
            }
        }
        int most = 1 + dice.nextInt(4);
        List<Item> items = new ArrayList<>();
        long next = position;
        int behind = 0;
        for (Item item : fromBatch(split, position, most)) {
            if (item.ordinal() < end) {
                items.add(item);
                if (item.ordinal() >= position) {
                    next = item.ordinal() + 1;
                    behind++;
                }
            }
        }
        if (behind < most) {
            // A jump of ordinals ahead is passed over.
            next = Math.max(next, Math.min(head, end));
        }
        return new Read(items, next, ends && next >= end);
    }
}
