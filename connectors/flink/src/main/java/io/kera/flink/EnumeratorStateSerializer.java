package io.kera.flink;

import io.kera.client.Generations.Barrier;
import io.kera.flink.LanePlan.GenerationState;
import io.kera.flink.LanePlan.PartState;
import io.kera.flink.LanePlan.State;
import io.kera.flink.LanePlan.Status;
import io.kera.flink.RangePlan.Uncut;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;

/** The enumerator's state in checkpoints: a plan for each stream. */
final class EnumeratorStateSerializer implements SimpleVersionedSerializer<EnumeratorState> {
    /** Version 1 had no ranges, version 2 no ids of streams, version 3 no shares of lanes' keys. */
    private static final int VERSION = 4;

    @Override
    public int getVersion() {
        return VERSION;
    }

    @Override
    public byte[] serialize(EnumeratorState state) throws IOException {
        DataOutputSerializer out = new DataOutputSerializer(256);
        out.writeInt(state.plans().size());
        for (State plan : state.plans()) {
            out.writeUTF(plan.stream());
            out.writeBoolean(plan.byKey());
            out.writeInt(plan.streamlets());
            out.writeBoolean(plan.bounded());
            out.writeInt(plan.shares());
            out.writeInt(plan.generations().size());
            for (GenerationState generation : plan.generations()) {
                out.writeInt(generation.partitions());
                out.writeByte(generation.barrier().ordinal());
            }
            out.writeInt(plan.parts().size());
            for (PartState part : plan.parts()) {
                LaneSplitSerializer.write(part.split(), out);
                out.writeLong(part.split().slices());
                out.writeByte(part.status().ordinal());
            }
        }
        out.writeInt(state.ranges().size());
        for (RangePlan.State plan : state.ranges()) {
            write(plan, out);
        }
        out.writeInt(state.ids().size());
        for (Map.Entry<String, String> each : new TreeMap<>(state.ids()).entrySet()) {
            out.writeUTF(each.getKey());
            out.writeUTF(each.getValue());
        }
        return out.getCopyOfBuffer();
    }

    @Override
    public EnumeratorState deserialize(int version, byte[] bytes) throws IOException {
        LaneSplitSerializer.checkVersion("enumerator", version, VERSION);
        DataInputDeserializer in = new DataInputDeserializer(bytes);
        List<State> plans = new ArrayList<>();
        for (int left = in.readInt(); left > 0; left--) {
            String stream = in.readUTF();
            boolean byKey = in.readBoolean();
            int streamlets = in.readInt();
            boolean bounded = in.readBoolean();
            int shares = version < 4 ? LanePlan.UNSHARED : in.readInt();
            List<GenerationState> generations = new ArrayList<>();
            for (int more = in.readInt(); more > 0; more--) {
                generations.add(new GenerationState(in.readInt(), Barrier.values()[in.readByte()]));
            }
            List<PartState> parts = new ArrayList<>();
            for (int more = in.readInt(); more > 0; more--) {
                LaneSplit split = LaneSplitSerializer.read(in);
                split = version < 4 ? split : split.ofSlices(in.readLong());
                parts.add(new PartState(split, Status.values()[in.readByte()]));
            }
            plans.add(new State(stream, byKey, streamlets, bounded, shares, generations, parts));
        }
        List<RangePlan.State> ranges = new ArrayList<>();
        for (int left = version < 2 ? 0 : in.readInt(); left > 0; left--) {
            ranges.add(ranges(in));
        }
        Map<String, String> ids = new HashMap<>();
        for (int left = version < 3 ? 0 : in.readInt(); left > 0; left--) {
            ids.put(in.readUTF(), in.readUTF());
        }
        return new EnumeratorState(plans, ranges, ids);
    }

    private static void write(RangePlan.State plan, DataOutputSerializer out) throws IOException {
        out.writeUTF(plan.stream());
        out.writeInt(plan.streamlets());
        out.writeBoolean(plan.bounded());
        out.writeInt(plan.lanes().size());
        for (Uncut lane : plan.lanes()) {
            out.writeInt(lane.streamlet());
            out.writeInt(lane.lane());
            out.writeLong(lane.next());
            out.writeLong(lane.end());
        }
        out.writeInt(plan.pending().size());
        for (LaneSplit range : plan.pending()) {
            LaneSplitSerializer.write(range, out);
        }
    }

    private static RangePlan.State ranges(DataInputDeserializer in) throws IOException {
        String stream = in.readUTF();
        int streamlets = in.readInt();
        boolean bounded = in.readBoolean();
        List<Uncut> lanes = new ArrayList<>();
        for (int left = in.readInt(); left > 0; left--) {
            lanes.add(new Uncut(in.readInt(), in.readInt(), in.readLong(), in.readLong()));
        }
        List<LaneSplit> pending = new ArrayList<>();
        for (int left = in.readInt(); left > 0; left--) {
            pending.add(LaneSplitSerializer.read(in));
        }
        return new RangePlan.State(stream, streamlets, bounded, lanes, pending);
    }
}
