package io.kera.spark;

import io.kera.client.LaneCutter;
import io.kera.client.LaneReader;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.ToLongFunction;
import org.apache.spark.sql.connector.read.streaming.CompositeReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxBytes;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;

/** How much of what could be read becomes part of a micro-batch: lanes take turns, batch by batch. Not thread-safe. */
final class Admission {
    private static final long LEAST_BYTES = 16 << 10;
    private static final long MOST_BYTES = 64 << 20;
    /** So many cuts of each lane, about: a lane with little leaves its part to others. */
    private static final int TURNS = 4;

    private final StreamLook look;
    /** The lane that is first; another one each time, so that a small limit reaches all. */
    private int turn;

    Admission(StreamLook look) {
        this.look = look;
    }

    /** The ranges as far as the limit lets them; a batch of records is not taken apart. */
    List<LaneRange> admit(List<LaneRange> ranges, ReadLimit limit) throws IOException {
        long bytes = most(limit, each -> each instanceof ReadMaxBytes max ? max.maxBytes() : Long.MAX_VALUE);
        long records = most(limit, each -> each instanceof ReadMaxRows max ? max.maxRows() : Long.MAX_VALUE);
        if (bytes == Long.MAX_VALUE && records == Long.MAX_VALUE) {
            return ranges;
        }
        List<LaneRange> order = new ArrayList<>(ranges);
        Collections.rotate(order, -(turn++ % order.size()));
        long turns = (long) TURNS * order.size();
        long byteShare = Math.min(MOST_BYTES, Math.max(LEAST_BYTES, bytes / turns));
        long recordShare = Math.max(1, records / turns);
        Map<LaneId, LaneRange> admitted = new HashMap<>();
        Deque<LaneRange> left = new ArrayDeque<>(order);
        while (!left.isEmpty() && bytes > 0 && records > 0) {
            LaneRange range = left.poll();
            int share = (int) Math.min(byteShare, bytes);
            LaneCutter.Range cut = look.cut(range.lane(), range.start(), share, Math.min(recordShare, records));
            // Without a boundary what is left has no records.
            boolean found = cut != null && cut.end() > range.start();
            long end = found ? Math.min(cut.end(), range.end()) : range.end();
            bytes -= share;
            records -= found ? LaneReader.behind(Math.max(cut.start(), range.start()), end) : 0;
            admitted.merge(range.lane(), range.between(range.start(), end),
                    (before, now) -> now.between(before.start(), now.end()));
            if (end < range.end()) {
                left.add(range.between(end, range.end()));
            }
        }
        // In the order in which they were given.
        return ranges.stream().map(range -> admitted.get(range.lane())).filter(range -> range != null).toList();
    }

    /** The least of what a limit's parts admit. */
    private static long most(ReadLimit limit, ToLongFunction<ReadLimit> admitted) {
        long most = admitted.applyAsLong(limit);
        if (limit instanceof CompositeReadLimit all) {
            for (ReadLimit each : all.getReadLimits()) {
                most = Math.min(most, most(each, admitted));
            }
        }
        return most;
    }
}
