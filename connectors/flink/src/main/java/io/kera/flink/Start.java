package io.kera.flink;

import io.kera.client.LanePosition;
import java.io.Serializable;
import java.util.List;

/** Where a job begins to read that is not restored from a checkpoint. Lanes that are added later are read whole. */
public final class Start implements Serializable {
    private static final long serialVersionUID = 1L;

    enum Kind {
        EARLIEST,
        LATEST,
        TIMESTAMP,
        POSITIONS
    }

    private final Kind kind;
    private final long timestamp;
    /** Streamlet, lane, ordinal of each. */
    private final long[][] positions;

    private Start(Kind kind, long timestamp, long[][] positions) {
        this.kind = kind;
        this.timestamp = timestamp;
        this.positions = positions;
    }

    /** At the first record that is stored. */
    public static Start earliest() {
        return new Start(Kind.EARLIEST, 0, new long[0][]);
    }

    /** Behind the last record that is stored now. */
    public static Start latest() {
        return new Start(Kind.LATEST, 0, new long[0][]);
    }

    /** At the first record of that time or later, milliseconds since 1970. */
    public static Start timestamp(long millis) {
        return new Start(Kind.TIMESTAMP, millis, new long[0][]);
    }

    /** At these ordinals; lanes that are not among them at their first record. */
    public static Start positions(List<LanePosition> at) {
        long[][] positions = new long[at.size()][];
        for (int n = 0; n < positions.length; n++) {
            LanePosition each = at.get(n);
            positions[n] = new long[] {each.streamlet(), each.lane(), each.ordinal()};
        }
        return new Start(Kind.POSITIONS, 0, positions);
    }

    Kind kind() {
        return kind;
    }

    long timestamp() {
        return timestamp;
    }

    /** The ordinal for a lane; {@code otherwise} if it is not among the positions. */
    long position(int streamlet, int lane, long otherwise) {
        for (long[] each : positions) {
            if (each[0] == streamlet && each[1] == lane) {
                return each[2];
            }
        }
        return otherwise;
    }
}
