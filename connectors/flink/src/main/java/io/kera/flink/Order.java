package io.kera.flink;

/** What order a source keeps. */
public enum Order {
    /** A lane is read by one reader, in order. */
    LANE,
    /** Ranges of a lane go to any reader that has nothing to do: parallelism may be above the number of lanes. */
    NONE,
    /**
     * The keys of a lane, in 64 slices, are shared by readers: parallelism may be above the number of lanes, and the records of each key are
     * read in order. Each reader reads all of its lanes, and passes over the keys of others.
     */
    KEY
}
