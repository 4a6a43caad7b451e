package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Generations;
import io.kera.client.Generations.Barrier;
import io.kera.client.Generations.Generation;
import io.kera.client.LanePosition;
import io.kera.client.Seeds;
import io.kera.client.Slices;
import io.kera.flink.LanePlan.Bounds;
import io.kera.flink.LanePlan.LaneId;
import io.kera.flink.ModelJob.Planted;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.connector.source.SourceEvent;
import org.apache.flink.configuration.Configuration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class LanePlanTest {
    private static final int SEEDS = 1_000;

    /** Whole lanes, and keys that one to four readers share. */
    private static int shares(long seed) {
        return Math.floorMod(seed, 5);
    }

    @Test
    void recordsOfAKeyPassOnceAndInOrderWhateverFails() {
        Seeds.play(SEEDS, seed -> new ModelJob(seed, Planted.NONE, shares(seed)).play());
    }

    @ParameterizedTest
    @EnumSource(value = Planted.class, mode = EnumSource.Mode.EXCLUDE, names = "NONE")
    void plantedDefectsAreFound(Planted planted) {
        Seeds.find(planted, SEEDS, seed -> new ModelJob(seed, planted, shares(seed)).play());
    }

    @Test
    void aPartBehindABarrierWaitsForItsReader() {
        Generations two = ModelStream.grown(
                new Generation(0, 1, Barrier.NONE, List.of()),
                new Generation(1, 2, Barrier.STREAMLET, List.of(new LanePosition(0, 0, 10))));
        LanePlan plan = LanePlan.begin("s", true, two, new Bounds(Map.of(), Map.of()), true, false, LanePlan.UNSHARED);
        int reader = plan.assign(3, any -> true).keySet().iterator().next();
        assertTrue(plan.hasPending(reader, 3), "the lane goes on behind the barrier");
        assertTrue(plan.hasPending((reader + 1) % 3, 3), "the other lane begins behind the barrier");
        assertFalse(plan.hasPending((reader + 2) % 3, 3), "there is no third lane");
    }

    private static List<String> ids(Map<Integer, List<LaneSplit>> assigned) {
        return assigned.values().stream().flatMap(List::stream).map(LaneSplit::splitId).sorted().toList();
    }

    @Test
    void aBarrierOpensOnlyWithACompletedCheckpoint() {
        Generations two = ModelStream.grown(
                new Generation(0, 1, Barrier.NONE, List.of()),
                new Generation(1, 2, Barrier.STREAMLET, List.of(new LanePosition(0, 0, 10))));
        LanePlan plan = LanePlan.begin("s", true, two, new Bounds(Map.of(), Map.of()), true, false, LanePlan.UNSHARED);
        assertEquals(List.of("s:0/0@0"), ids(plan.assign(1, reader -> true)));
        assertTrue(plan.hasClosedBarrier());
        plan.snapshot(1);
        plan.finished(List.of("s:0/0@0"), 0);
        assertEquals(Map.of(), plan.completed(1), "taken before the report");
        assertEquals(List.of(), ids(plan.assign(1, reader -> true)));
        plan.snapshot(2);
        assertEquals(Map.of(0, List.of("s:0/0@0")), plan.completed(2));
        assertEquals(List.of("s:0/0@1", "s:0/1@1"), ids(plan.assign(1, reader -> true)));
        assertFalse(plan.hasClosedBarrier());
    }

    @Test
    void whatAReaderReportsBeforeItIsRegisteredIsToldItThen() throws Exception {
        Generations one = ModelStream.grown(new Generation(0, 2, Barrier.NONE, List.of()));
        LanePlan plan = LanePlan.begin("s", true, one, new Bounds(Map.of(), Map.of()), true, false, LanePlan.UNSHARED);
        plan.assign(1, reader -> true);
        plan.finished(List.of("s:0/0@0"), 0);
        EnumeratorState state = new EnumeratorState(List.of(plan.snapshot(1)), List.of(), Map.of());
        SourceSettings settings = KeraSource.<String>builder()
                .bootstrap("127.0.0.1:1")
                .streams("s")
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .settings(new Configuration());
        DirectContext context = new DirectContext();
        try (KeraEnumerator enumerator = new KeraEnumerator(context, settings, state)) {
            // Of a reader that was restored, in this order.
            enumerator.handleSourceEvent(0, new SplitsFinished(List.of("s:0/0@0", "s:0/1@0")));
            context.registerReader(0, "here");
            enumerator.addReader(0);
            // The other lane is in no checkpoint yet.
            List<SourceEvent> sent = context.getSentEvents().get(0);
            assertEquals(new FinishRecorded(List.of("s:0/0@0")), sent.get(0));
            // Which it does not heed: it had splits.
            assertEquals(List.of(new WithoutSplits()), sent.subList(1, sent.size()));
        }
    }

    @Test
    void aCheckpointThatIsAbortedIsForgotten() {
        Generations one = ModelStream.grown(new Generation(0, 1, Barrier.NONE, List.of()));
        LanePlan plan = LanePlan.begin("s", true, one, new Bounds(Map.of(), Map.of()), true, false, LanePlan.UNSHARED);
        plan.assign(1, reader -> true);
        plan.finished(List.of("s:0/0@0"), 0);
        plan.snapshot(1);
        plan.aborted(1);
        assertEquals(Map.of(), plan.completed(1));
        plan.snapshot(2);
        assertEquals(Map.of(0, List.of("s:0/0@0")), plan.completed(2));
    }

    @Test
    void aBoundedReadOfEmptyLanesMakesNoSplit() {
        Generations one = ModelStream.grown(new Generation(0, 2, Barrier.NONE, List.of()));
        Bounds bounds = new Bounds(
                Map.of(new LaneId(0, 0), 0L, new LaneId(0, 1), 3L), Map.of(new LaneId(0, 0), 0L, new LaneId(0, 1), 9L));
        LanePlan plan = LanePlan.begin("s", true, one, bounds, true, true, LanePlan.UNSHARED);
        Map<Integer, List<LaneSplit>> assigned = plan.assign(1, reader -> true);
        assertEquals(List.of("s:0/1@0"), ids(assigned));
        LaneSplit split = assigned.get(0).get(0);
        assertEquals(3, split.position());
        assertEquals(9, split.end());
        assertTrue(plan.isAssigned());
        plan.grown(ModelStream.grown(
                new Generation(0, 2, Barrier.NONE, List.of()),
                new Generation(1, 3, Barrier.STREAM, List.of(new LanePosition(0, 1, 20)))));
        assertTrue(plan.isAssigned(), "lanes that come later are not read");
    }

    @Test
    void laterLanesOfAStreamWithoutKeysAreReadAtOnceAndOldOnesGoOn() {
        Generations two = ModelStream.grown(
                new Generation(0, 1, Barrier.NONE, List.of()), new Generation(1, 2, Barrier.NONE, List.of()));
        Generations one = ModelStream.grown(new Generation(0, 1, Barrier.NONE, List.of()));
        LanePlan plan = LanePlan.begin("s", false, one, new Bounds(Map.of(), Map.of()), true, false, LanePlan.UNSHARED);
        assertEquals(List.of("s:0/0@-1"), ids(plan.assign(1, reader -> true)));
        plan.grown(two);
        assertEquals(List.of("s:0/1@-1"), ids(plan.assign(1, reader -> true)));
    }

    @Test
    void partsAreSpreadEvenly() {
        Generations many = ModelStream.grown(new Generation(0, 12, Barrier.NONE, List.of()));
        LanePlan plan = LanePlan.begin("s", true, many, new Bounds(Map.of(), Map.of()), true, false, LanePlan.UNSHARED);
        Map<Integer, Integer> counts = plan.assign(4, reader -> true).entrySet().stream()
                .collect(Collectors.toMap(Map.Entry::getKey, each -> each.getValue().size()));
        assertEquals(Map.of(0, 3, 1, 3, 2, 3, 3, 3), counts);
    }

    @Test
    void theKeysOfALaneAreSpreadOverReaders() {
        Generations two = ModelStream.grown(new Generation(0, 2, Barrier.NONE, List.of()));
        for (int shares = 1; shares <= Slices.COUNT; shares++) {
            LanePlan plan = LanePlan.begin("s", true, two, new Bounds(Map.of(), Map.of()), true, false, shares);
            Map<Integer, List<LaneSplit>> assigned = plan.assign(2 * shares, reader -> true);
            assertEquals(2 * shares, assigned.size(), "each reader has one");
            for (int lane = 0; lane < 2; lane++) {
                int of = lane;
                long all = assigned.values().stream().flatMap(List::stream).filter(split -> split.lane() == of)
                        .mapToLong(LaneSplit::slices).reduce(0, (one, other) -> one ^ other);
                assertEquals(LaneSplit.ALL_SLICES, all, "each slice is somebody's, once");
            }
            LanePlan.State state = plan.snapshot(1);
            assertEquals(shares, LanePlan.restore(state, true).snapshot(2).shares());
        }
    }
}
