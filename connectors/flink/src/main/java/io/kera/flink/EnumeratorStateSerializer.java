package io.kera.flink;

import io.kera.client.Generations.Barrier;
import io.kera.flink.LanePlan.GenerationState;
import io.kera.flink.LanePlan.PartState;
import io.kera.flink.LanePlan.State;
import io.kera.flink.LanePlan.Status;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;

/** The enumerator's state in checkpoints: a plan for each stream. */
final class EnumeratorStateSerializer implements SimpleVersionedSerializer<EnumeratorState> {
    private static final int VERSION = 1;

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
            out.writeInt(plan.generations().size());
            for (GenerationState generation : plan.generations()) {
                out.writeInt(generation.partitions());
                out.writeByte(generation.barrier().ordinal());
            }
            out.writeInt(plan.parts().size());
            for (PartState part : plan.parts()) {
                LaneSplitSerializer.write(part.split(), out);
                out.writeByte(part.status().ordinal());
            }
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
            List<GenerationState> generations = new ArrayList<>();
            for (int more = in.readInt(); more > 0; more--) {
                generations.add(new GenerationState(in.readInt(), Barrier.values()[in.readByte()]));
            }
            List<PartState> parts = new ArrayList<>();
            for (int more = in.readInt(); more > 0; more--) {
                parts.add(new PartState(LaneSplitSerializer.read(in), Status.values()[in.readByte()]));
            }
            plans.add(new State(stream, byKey, streamlets, bounded, generations, parts));
        }
        return new EnumeratorState(plans);
    }
}
