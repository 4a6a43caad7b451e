package io.kera.flink;

import java.util.List;

/** What a checkpoint has of the enumerator. */
public final class EnumeratorState {
    private final List<LanePlan.State> plans;
    private final List<RangePlan.State> ranges;

    EnumeratorState(List<LanePlan.State> plans, List<RangePlan.State> ranges) {
        this.plans = List.copyOf(plans);
        this.ranges = List.copyOf(ranges);
    }

    /** One for each stream of a source that keeps the order of lanes. */
    List<LanePlan.State> plans() {
        return plans;
    }

    /** One for each stream of a source that keeps no order. */
    List<RangePlan.State> ranges() {
        return ranges;
    }
}
