package io.kera.flink;

import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The splits that a reader has finished, until a completed checkpoint is known to have the enumerator's record of them.
 *
 * <p>Flink does not make what readers tell the enumerator consistent with checkpoints: a report may arrive after the
 * enumerator's state was taken, and be gone after a restore. So a reader keeps finished splits in its own state, and
 * reports them again after a restore. Not thread-safe; without I/O.
 */
final class FinishedLedger {
    private final Map<String, LaneSplit> splits = new LinkedHashMap<>();

    /** A split was read to its end. */
    void finished(LaneSplit split) {
        splits.put(split.splitId(), split.asFinished());
    }

    /** The enumerator's record of these is in a completed checkpoint. */
    void acknowledged(Collection<String> ids) {
        splits.keySet().removeAll(ids);
    }

    /** What belongs into a checkpoint, and is to be reported after a restore. */
    List<LaneSplit> splits() {
        return new ArrayList<>(splits.values());
    }
}
