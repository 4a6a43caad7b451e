package io.kera.spark;

import java.io.Serializable;
import java.util.Comparator;

/** A lane of a stream. */
record LaneId(String stream, int streamlet, int lane) implements Comparable<LaneId>, Serializable {
    private static final long serialVersionUID = 1L;
    private static final Comparator<LaneId> ORDER =
            Comparator.comparing(LaneId::stream).thenComparingInt(LaneId::lane).thenComparingInt(LaneId::streamlet);

    @Override
    public int compareTo(LaneId other) {
        return ORDER.compare(this, other);
    }

    @Override
    public String toString() {
        return stream + ":" + streamlet + "/" + lane;
    }
}
