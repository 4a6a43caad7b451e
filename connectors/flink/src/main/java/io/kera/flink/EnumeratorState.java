package io.kera.flink;

import java.util.List;

/** What a checkpoint has of the enumerator. */
public final class EnumeratorState {
    private final List<LanePlan.State> plans;

    EnumeratorState(List<LanePlan.State> plans) {
        this.plans = List.copyOf(plans);
    }

    /** One for each stream; none before the streams were looked up. */
    List<LanePlan.State> plans() {
        return plans;
    }
}
