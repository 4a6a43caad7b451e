package io.kera.flink;

/** What a source does where a stream's lanes grow, which moves keys to other lanes. */
public enum Growth {
    /**
     * Records of a key keep their order: what was appended after a growth is read after everything from before it has
     * passed through the job. That needs aligned checkpoints.
     */
    ORDERED,
    /** New lanes are read at once. Records of a key may overtake each other at a growth. */
    UNORDERED,
    /** The job fails at a growth. */
    REFUSED
}
