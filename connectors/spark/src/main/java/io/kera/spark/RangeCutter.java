package io.kera.spark;

import io.kera.client.LaneCutter;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** Cuts ranges into parts that tasks read side by side: at batch boundaries, as owners tell them, never by arithmetic. */
final class RangeCutter {
    private static final int LARGEST_PART = 64 << 20;
    private static final int FACTOR = 8;

    private RangeCutter() {}

    /** The ranges in at least so many parts, as long as there are so many batches. */
    static List<LaneRange> cut(StreamLook look, List<LaneRange> ranges, int wanted) throws IOException {
        if (ranges.size() >= wanted) {
            return ranges;
        }
        // Few large parts cost few calls: smaller ones are asked for only where there are too few.
        for (int bytes = LARGEST_PART;; bytes /= FACTOR) {
            List<List<LaneRange>> parts = new ArrayList<>();
            int found = 0;
            for (LaneRange range : ranges) {
                List<LaneRange> cut = cutOne(look, range, bytes);
                found += cut.size();
                parts.add(cut);
            }
            if (found >= wanted || bytes <= FACTOR) {
                return merged(parts, found, wanted);
            }
        }
    }

    private static List<LaneRange> cutOne(StreamLook look, LaneRange range, int bytes) throws IOException {
        List<LaneRange> parts = new ArrayList<>();
        long from = range.start();
        while (from < range.end()) {
            LaneCutter.Range cut = look.cut(range.lane(), from, bytes, Long.MAX_VALUE);
            // Without a boundary what is left is one part.
            long end = cut == null || cut.end() <= from ? range.end() : Math.min(cut.end(), range.end());
            parts.add(range.between(from, end));
            from = end;
        }
        return parts;
    }

    /** Neighbours together, so that about as many are left as are wanted. */
    static List<LaneRange> merged(List<List<LaneRange>> parts, int found, int wanted) {
        List<LaneRange> merged = new ArrayList<>();
        for (List<LaneRange> lane : parts) {
            int count = Math.min(lane.size(), Math.toIntExact(((long) wanted * lane.size() + found - 1) / found));
            for (int n = 0; n < count; n++) {
                LaneRange first = lane.get(share(lane.size(), n, count));
                LaneRange last = lane.get(share(lane.size(), n + 1, count) - 1);
                merged.add(first.between(first.start(), last.end()));
            }
        }
        return merged;
    }

    /** How many of {@code all} the first {@code n} of {@code count} shares have. */
    private static int share(int all, int n, int count) {
        return (int) ((long) all * n / count);
    }
}
