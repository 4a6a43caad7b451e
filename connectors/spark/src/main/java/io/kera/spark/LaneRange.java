package io.kera.spark;

import java.io.Serializable;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * What a task reads: the records of a lane whose ordinals are {@code start} or more, and below {@code end}.
 */
record LaneRange(LaneId lane, long start, long end) implements InputPartition, Serializable {
    private static final long serialVersionUID = 1L;

    @Override
    public String toString() {
        return lane + " [" + start + ", " + end + ")";
    }
}
