package io.kera.flink;

import java.io.IOException;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.core.memory.DataOutputView;

/** Splits in checkpoints. */
final class LaneSplitSerializer implements SimpleVersionedSerializer<LaneSplit> {
    /** Version 1 had no ids of streams, version 2 no slices. */
    private static final int VERSION = 3;

    @Override
    public int getVersion() {
        return VERSION;
    }

    @Override
    public byte[] serialize(LaneSplit split) throws IOException {
        DataOutputSerializer out = new DataOutputSerializer(64);
        write(split, out);
        out.writeUTF(split.streamId());
        out.writeLong(split.slices());
        return out.getCopyOfBuffer();
    }

    @Override
    public LaneSplit deserialize(int version, byte[] bytes) throws IOException {
        checkVersion("split", version, VERSION);
        DataInputDeserializer in = new DataInputDeserializer(bytes);
        LaneSplit split = read(in);
        split = version < 2 ? split : split.of(in.readUTF());
        return version < 3 ? split : split.ofSlices(in.readLong());
    }

    static void checkVersion(String what, int version, int newest) throws IOException {
        if (version < 1 || version > newest) {
            throw new IOException("the state of a Kera " + what + " has version " + version
                    + ", this connector reads up to " + newest + "; use a newer connector");
        }
    }

    /** Without the stream's id and the slices, as in the enumerator's state, which has the ids of all streams elsewhere. */
    static void write(LaneSplit split, DataOutputView out) throws IOException {
        out.writeUTF(split.stream());
        out.writeInt(split.streamlet());
        out.writeInt(split.lane());
        out.writeInt(split.generation());
        out.writeLong(split.position());
        out.writeLong(split.end());
        out.writeBoolean(split.finished());
    }

    static LaneSplit read(DataInputView in) throws IOException {
        return new LaneSplit(
                in.readUTF(), in.readInt(), in.readInt(), in.readInt(), in.readLong(), in.readLong(), in.readBoolean());
    }
}
