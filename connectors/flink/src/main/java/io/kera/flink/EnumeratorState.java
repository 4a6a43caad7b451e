package io.kera.flink;

import java.util.List;
import java.util.Map;

/** What a checkpoint has of the enumerator. */
public final class EnumeratorState {
    private final List<LanePlan.State> plans;
    private final List<RangePlan.State> ranges;
    private final Map<String, String> ids;

    EnumeratorState(List<LanePlan.State> plans, List<RangePlan.State> ranges, Map<String, String> ids) {
        this.plans = List.copyOf(plans);
        this.ranges = List.copyOf(ranges);
        this.ids = Map.copyOf(ids);
    }

    /** One for each stream of a source that keeps the order of lanes. */
    List<LanePlan.State> plans() {
        return plans;
    }

    /** One for each stream of a source that keeps no order. */
    List<RangePlan.State> ranges() {
        return ranges;
    }

    /** The streams' ids in hexadecimal digits, by name, as far as they are known: a name can be another stream's by now. */
    Map<String, String> ids() {
        return ids;
    }
}
