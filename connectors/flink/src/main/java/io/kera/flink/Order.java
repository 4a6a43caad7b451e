package io.kera.flink;

/** What order a source keeps. */
public enum Order {
    /** A lane is read by one reader, in order. */
    LANE,
    /** Ranges of a lane go to any reader that has nothing to do: parallelism may be above the number of lanes. */
    NONE
}
