package io.kera.client;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Which brokers in a reader's rack hold replicas of the closed groups that it reads next. A state machine: it asks nobody.
 */
final class NearReplicas {
    /** Shortest time between two looks; and between two that are only due because the reader is behind. */
    private static final long LOOK_NANOS = Duration.ofSeconds(1).toNanos();
    private static final long LATER_NANOS = Duration.ofSeconds(10).toNanos();
    /** A broker that was not reached is not tried for so long. */
    private static final long AWAY_NANOS = Duration.ofSeconds(10).toNanos();

    /**
     * Records of a closed group.
     *
     * @param end where the next one begins, as far as is known
     * @param holders addresses of brokers in the rack; none where the owner is in it too
     */
    record Range(long first, long end, List<String> holders) {}

    private record Refusal(long first, String holder) {}

    private record Holder(String address, String rack) {}

    private final String rack;
    private List<Range> ranges = new ArrayList<>();
    /** Up to where brokers have told of closed groups. */
    private long lookedTo;
    /** False while it is not known whether the last range is of the generation that is read. */
    private boolean isProven = true;
    private boolean isBegun;
    private boolean more;
    private long looked;
    private final Set<Refusal> refused = new HashSet<>();
    /** Until when, by {@link System#nanoTime}, a broker is not tried. */
    private final Map<String, Long> away = new HashMap<>();

    NearReplicas(String rack) {
        this.rack = rack;
    }

    /** What any broker is asked. */
    static byte[] request(String stream, int streamlet, int lane, long ordinal) {
        return new Wire.Writer().text(1, stream).number(2, streamlet).number(3, lane).number(4, ordinal).done();
    }

    /** Whether brokers are to be asked which replicas there are at an ordinal. */
    boolean isDue(long ordinal, boolean isBehind, long now) {
        if (!isBegun) {
            return true;
        }
        boolean isExhausted = more && ordinal >= lookedTo;
        return now - looked >= (isExhausted ? LOOK_NANOS : LATER_NANOS) && (isExhausted || isBehind && ordinal >= lookedTo);
    }

    /**
     * The answer to the request.
     *
     * @param owner who has all records, and is asked if it is no further away
     * @param ofGeneration whether records of one generation of lanes are read: the last range is yet to be proved
     */
    void found(ByteBuffer answer, String owner, boolean ofGeneration, long now) {
        none(now);
        Map<Integer, Holder> brokers = new HashMap<>();
        List<ByteBuffer> groups = new ArrayList<>();
        Wire.Reader fields = new Wire.Reader(answer);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> groups.add(fields.part());
                case 2 -> broker(fields.part(), brokers);
                default -> fields.skip();
            }
        }
        for (ByteBuffer group : groups) {
            add(group, owner, brokers);
        }
        more = !ranges.isEmpty();
        lookedTo = more ? last().end() : 0;
        isProven = !ofGeneration || !more;
    }

    private static void broker(ByteBuffer in, Map<Integer, Holder> brokers) {
        int id = 0;
        String address = "";
        String rack = "";
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> id = (int) fields.varint();
                case 2 -> address = fields.text();
                case 3 -> rack = fields.text();
                default -> fields.skip();
            }
        }
        brokers.put(id, new Holder(address, rack));
    }

    private void add(ByteBuffer group, String owner, Map<Integer, Holder> brokers) {
        long first = 0;
        long end = 0;
        List<String> near = new ArrayList<>();
        Wire.Reader fields = new Wire.Reader(group);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 5 -> first = fields.varint();
                case 6 -> end = fields.varint();
                // Packed or not.
                case 9 -> {
                    for (int id : fields.numbers()) {
                        Holder holder = brokers.get(id);
                        if (holder != null && holder.rack().equals(rack) && !holder.address().isEmpty()) {
                            near.add(holder.address());
                        }
                    }
                }
                default -> fields.skip();
            }
        }
        if (!ranges.isEmpty()) {
            // What is missing in between is read as the end of the group before.
            Range before = ranges.remove(ranges.size() - 1);
            ranges.add(new Range(before.first(), first, before.holders()));
        }
        ranges.add(new Range(first, end, near.contains(owner) ? List.of() : near));
    }

    /** Nothing is known, be it that nobody has answered. */
    void none(long now) {
        ranges = new ArrayList<>();
        refused.clear();
        isBegun = true;
        isProven = true;
        more = false;
        lookedTo = 0;
        looked = now;
    }

    /** An ordinal whose generation the owner is to be asked for; -1: there is no need. */
    long toProve() {
        return isProven ? -1 : last().end() - 1;
    }

    /** Whether the ordinal is of the generation that is read. Those below it are too, then. */
    void proved(boolean isOfGeneration) {
        if (!isOfGeneration) {
            ranges.remove(ranges.size() - 1);
        }
        isProven = isOfGeneration || ranges.isEmpty();
    }

    private Range last() {
        return ranges.get(ranges.size() - 1);
    }

    /** The range that holds an ordinal; null: ask the owner. */
    Range at(long ordinal) {
        if (!isProven) {
            return null;
        }
        for (Range range : ranges) {
            if (range.first() <= ordinal && ordinal < range.end()) {
                return range;
            }
        }
        return null;
    }

    /** Who is to be asked for a range; null: the owner. */
    String holder(Range range, long now) {
        away.values().removeIf(until -> until - now <= 0);
        for (String holder : range.holders()) {
            if (!away.containsKey(holder) && !refused.contains(new Refusal(range.first(), holder))) {
                return holder;
            }
        }
        return null;
    }

    /** A broker does not give a range. */
    void refused(Range range, String holder) {
        refused.add(new Refusal(range.first(), holder));
    }

    /** A broker was not reached. */
    void away(String holder, long now) {
        away.put(holder, now + AWAY_NANOS);
    }
}
