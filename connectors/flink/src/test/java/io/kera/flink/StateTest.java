package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Generations.Barrier;
import io.kera.flink.LanePlan.GenerationState;
import io.kera.flink.LanePlan.PartState;
import io.kera.flink.LanePlan.State;
import io.kera.flink.LanePlan.Status;
import java.io.IOException;
import java.io.InputStream;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** What checkpoints have, in the bytes of each version that was ever written. */
class StateTest {
    private static final LaneSplit LIVE = new LaneSplit("orders", 3, 2, 1, 1L << 33, LaneSplit.UNBOUNDED, false);
    private static final LaneSplit DONE = new LaneSplit("orders", 0, 0, 0, 7, 9, true);
    private static final State PLAN = new State(
            "orders", true, 4, false, LanePlan.UNSHARED,
            List.of(new GenerationState(4, Barrier.NONE), new GenerationState(12, Barrier.STREAM)),
            List.of(new PartState(LIVE, Status.ASSIGNED), new PartState(DONE, Status.FINISHED)));
    private static final LaneSplit SOME_KEYS = LIVE.ofSlices(1L << 63 | 6);
    private static final State SHARED = new State(
            "orders", true, 4, false, 3, PLAN.generations(), List.of(new PartState(SOME_KEYS, Status.ASSIGNED)));
    private static final RangePlan.State RANGES = new RangePlan.State(
            "clicks", 2, true, List.of(new RangePlan.Uncut(1, 3, 70, 1L << 34)), List.of(LaneSplit.range("clicks", 0, 0, 5, 9)));

    private static byte[] stored(String name) throws IOException {
        try (InputStream in = StateTest.class.getResourceAsStream("/state/" + name)) {
            return HexFormat.of().parseHex(new String(in.readAllBytes()).strip());
        }
    }

    @Test
    void splitsOfVersionOneAreRead() throws IOException {
        assertEquals(LIVE, new LaneSplitSerializer().deserialize(1, stored("split-1.hex")));
    }

    @Test
    void splitsOfVersionTwoAreRead() throws IOException {
        LaneSplitSerializer serializer = new LaneSplitSerializer();
        LaneSplit identified = LIVE.of("00112233445566778899aabbccddeeff");
        assertEquals(identified, serializer.deserialize(2, stored("split-2.hex")));
    }

    @Test
    void splitsOfVersionThreeAreRead() throws IOException {
        LaneSplitSerializer serializer = new LaneSplitSerializer();
        LaneSplit some = SOME_KEYS.of("00112233445566778899aabbccddeeff");
        assertEquals(some, serializer.deserialize(3, stored("split-3.hex")));
        assertEquals(HexFormat.of().formatHex(stored("split-3.hex")), HexFormat.of().formatHex(serializer.serialize(some)));
        assertEquals(DONE, serializer.deserialize(3, serializer.serialize(DONE)));
        LaneSplit range = LaneSplit.range("clicks", 0, 0, 5, 9);
        assertEquals(range.at(7), serializer.deserialize(3, serializer.serialize(range.at(7))));
        assertEquals(range.splitId(), range.at(7).splitId());
        assertEquals("orders:3/2@1", LIVE.splitId(), "as checkpoints of before have it");
        assertEquals("orders:3/2@1%8000000000000006", some.splitId());
    }

    @Test
    void theEnumeratorsStateOfVersionOneIsRead() throws IOException {
        EnumeratorStateSerializer serializer = new EnumeratorStateSerializer();
        EnumeratorState read = serializer.deserialize(1, stored("enumerator-1.hex"));
        assertEquals(List.of(PLAN), read.plans());
        assertEquals(List.of(), read.ranges());
    }

    @Test
    void theEnumeratorsStateOfVersionTwoIsRead() throws IOException {
        EnumeratorStateSerializer serializer = new EnumeratorStateSerializer();
        EnumeratorState read = serializer.deserialize(2, stored("enumerator-2.hex"));
        assertEquals(List.of(PLAN), read.plans());
        assertEquals(List.of(RANGES), read.ranges());
        assertEquals(Map.of(), read.ids());
    }

    @Test
    void theEnumeratorsStateOfVersionThreeIsRead() throws IOException {
        EnumeratorStateSerializer serializer = new EnumeratorStateSerializer();
        EnumeratorState read = serializer.deserialize(3, stored("enumerator-3.hex"));
        assertEquals(List.of(PLAN), read.plans());
        assertEquals(List.of(RANGES), read.ranges());
        Map<String, String> ids = Map.of("orders", "00112233445566778899aabbccddeeff");
        assertEquals(ids, read.ids());
    }

    @Test
    void theEnumeratorsStateOfVersionFourIsRead() throws IOException {
        EnumeratorStateSerializer serializer = new EnumeratorStateSerializer();
        EnumeratorState read = serializer.deserialize(4, stored("enumerator-4.hex"));
        assertEquals(List.of(PLAN, SHARED), read.plans());
        assertEquals(List.of(RANGES), read.ranges());
        Map<String, String> ids = Map.of("orders", "00112233445566778899aabbccddeeff");
        assertEquals(ids, read.ids());
        byte[] written = serializer.serialize(new EnumeratorState(List.of(PLAN, SHARED), List.of(RANGES), ids));
        assertEquals(HexFormat.of().formatHex(stored("enumerator-4.hex")), HexFormat.of().formatHex(written));
    }

    @Test
    void prefixesOfVersionOneAreRead() throws IOException {
        PrefixSerializer serializer = new PrefixSerializer();
        assertEquals("job/ä", serializer.deserialize(1, stored("prefix-1.hex")));
        assertEquals(1, serializer.getVersion());
        assertEquals(HexFormat.of().formatHex(stored("prefix-1.hex")), HexFormat.of().formatHex(serializer.serialize("job/ä")));
        IOException error = assertThrows(IOException.class, () -> serializer.deserialize(2, stored("prefix-1.hex")));
        assertTrue(error.getMessage().contains("use a newer one"), error.getMessage());
    }

    @Test
    void stateOfANewerConnectorIsRefused() {
        IOException error = assertThrows(IOException.class, () -> new LaneSplitSerializer().deserialize(4, new byte[40]));
        assertTrue(error.getMessage().contains("newer connector"), error.getMessage());
    }
}
