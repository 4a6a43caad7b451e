package io.kera.spark;

import java.io.Serializable;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * What a task reads: the records of a lane whose ordinals are {@code start} or more, and below {@code end}.
 *
 * @param id the stream's id: its name may be another stream's by the time of the read
 */
record LaneRange(LaneId lane, String id, long start, long end) implements InputPartition, Serializable {
    private static final long serialVersionUID = 2L;

    /** Others of its lane's ordinals. */
    LaneRange between(long first, long last) {
        return new LaneRange(lane, id, first, last);
    }

    @Override
    public String toString() {
        return lane + " [" + start + ", " + end + ")";
    }
}
