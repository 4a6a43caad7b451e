package io.kera.flink;

import java.io.Serializable;
import java.util.List;
import org.apache.flink.api.connector.source.SourceEvent;

/**
 * A reader to the enumerator: where its splits stand in a checkpoint that is under way. It comes before the enumerator hears that the
 * checkpoint is complete, since a reader acknowledges the checkpoint later.
 */
record PositionsTaken(long checkpoint, List<Taken> splits) implements SourceEvent {
    private static final long serialVersionUID = 1L;

    /**
     * Where a split stands.
     *
     * @param id the split's
     * @param finished everything of it was read; the enumerator may not have heard of that before its own state was taken
     */
    record Taken(String stream, int streamlet, int lane, String id, long position, boolean finished) implements Serializable {
        private static final long serialVersionUID = 1L;
    }

    static PositionsTaken of(long checkpoint, List<LaneSplit> splits) {
        return new PositionsTaken(checkpoint, splits.stream()
                .map(split -> new Taken(split.stream(), split.streamlet(), split.lane(), split.splitId(), split.position(), split.finished()))
                .toList());
    }
}
