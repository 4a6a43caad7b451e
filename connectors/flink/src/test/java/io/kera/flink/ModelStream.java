package io.kera.flink;

import io.kera.client.Generations;
import io.kera.client.Generations.Barrier;
import io.kera.client.Generations.Generation;
import io.kera.client.LanePosition;
import io.kera.client.Partitions;
import io.kera.flink.LanePlan.Bounds;
import io.kera.flink.LanePlan.LaneId;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/** A stream whose lanes grow, with keys that count up. Ordinals have gaps. */
final class ModelStream {
    /** The n-th record of a key. */
    record Item(long ordinal, int key, int count) {}

    /** What a read gives: records from a batch on that may begin below the position, and where to go on. */
    record Read(List<Item> items, long next, boolean finished) {}

    final int streamlets;
    final int keys;
    private final Random dice;
    private final List<Generation> generations = new ArrayList<>();
    private final Map<LaneId, List<Item>> lanes = new HashMap<>();
    private final Map<LaneId, Long> heads = new HashMap<>();
    private final int[] counts;

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

    int partitions() {
        return generations.get(generations.size() - 1).partitions();
    }

    void append() {
        int key = dice.nextInt(keys);
        LaneId lane = lane((key * 7919) % partitions());
        long head = heads.getOrDefault(lane, 0L);
        if (dice.nextInt(20) == 0) {
            head += 1L << 32;
        }
        lanes.computeIfAbsent(lane, any -> new ArrayList<>()).add(new Item(head, key, counts[key]++));
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
        }
        Barrier barrier = moves ? Barrier.STREAM : Barrier.STREAMLET;
        generations.add(new Generation(generations.size(), after, barrier, boundaries));
    }

    Generations generations() {
        return new Generations(new byte[16], streamlets, List.copyOf(generations));
    }

    Bounds bounds() {
        Map<LaneId, Long> ends = new HashMap<>();
        for (int partition = 0; partition < partitions(); partition++) {
            ends.put(lane(partition), heads.getOrDefault(lane(partition), 0L));
        }
        return new Bounds(Map.of(), ends);
    }

    int total() {
        return lanes.values().stream().mapToInt(List::size).sum();
    }

    /** The next few records of a lane from a position on, as one batch; none if there are none yet. */
    List<Item> batch(LaneSplit split, long position) {
        LaneId lane = new LaneId(split.streamlet(), split.lane());
        int most = 1 + dice.nextInt(4);
        return lanes.getOrDefault(lane, List.of()).stream()
                .filter(item -> item.ordinal() >= position)
                .limit(most)
                .toList();
    }

    /** As a broker answers: a few records, and the end of the split's generation if it is reached. */
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
        List<Item> items = new ArrayList<>();
        long next = position;
        int most = 1 + dice.nextInt(4);
        for (Item item : lanes.getOrDefault(lane, List.of())) {
            if (item.ordinal() >= position && item.ordinal() < end && items.size() < most) {
                items.add(item);
                next = item.ordinal() + 1;
            }
        }
        if (items.size() < most) {
            // A jump of ordinals ahead is passed over.
            next = Math.max(next, Math.min(head, end));
        }
        return new Read(items, next, ends && next >= end);
    }
}
