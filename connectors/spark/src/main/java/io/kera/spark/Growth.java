package io.kera.spark;

import io.kera.client.Generations;
import io.kera.client.Generations.Generation;
import io.kera.client.LanePosition;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.function.ToLongFunction;

/** What a query does where a stream's lanes grow, which moves keys to other lanes. */
enum Growth {
    /** What was appended after a growth is part of a later micro-batch than all from before it. */
    ORDERED,
    /** New lanes are read at once. Records of a key may overtake each other at a growth. */
    UNORDERED,
    /** The query fails. */
    REFUSED;

    /**
     * Up to where the next micro-batch may read each lane, so that records of a key keep their order; lanes without an
     * entry have no such end.
     *
     * @param position where the last micro-batch, which is complete, ended in a lane
     */
    static SortedMap<LaneId, Long> ends(String stream, Generations grown, ToLongFunction<LaneId> position) {
        List<Generation> all = grown.all();
        List<Map<LaneId, Long>> boundaries = new ArrayList<>();
        for (Generation generation : all) {
            Map<LaneId, Long> of = new HashMap<>();
            for (LanePosition each : generation.boundaries()) {
                of.put(new LaneId(stream, each.streamlet(), each.lane()), each.ordinal());
            }
            boundaries.add(of);
        }
        boolean[][] open = new boolean[all.size()][grown.streamlets()];
        Arrays.fill(open[0], true);
        for (int number = 1; number < all.size(); number++) {
            boolean[] done = open[number - 1].clone();
            boundaries.get(number).forEach((lane, boundary) ->
                    done[lane.streamlet()] &= position.applyAsLong(lane) >= boundary);
            boolean everywhere = true;
            for (boolean each : done) {
                everywhere &= each;
            }
            for (int streamlet = 0; streamlet < grown.streamlets(); streamlet++) {
                open[number][streamlet] = switch (all.get(number).barrier()) {
                    case NONE -> true;
                    case STREAMLET -> done[streamlet];
                    case STREAM -> everywhere;
                };
            }
        }
        SortedMap<LaneId, Long> ends = new TreeMap<>();
        int partitions = all.get(all.size() - 1).partitions();
        for (int partition = 0; partition < partitions; partition++) {
            int streamlet = partition % grown.streamlets();
            LaneId lane = new LaneId(stream, streamlet, partition / grown.streamlets());
            for (int number = 1; number < all.size(); number++) {
                if (partition < all.get(number).partitions() && !open[number][streamlet]) {
                    // A lane that is new there is not read at all.
                    ends.put(lane, boundaries.get(number).getOrDefault(lane, 0L));
                    break;
                }
            }
        }
        return ends;
    }
}
