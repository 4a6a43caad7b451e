package io.kera.client;

/** Of what a group's positions are reset: see {@link Admin#resetGroup}. */
public final class GroupPart {
    /** All that it reads. */
    public static final GroupPart WHOLE = new GroupPart(new Wire.Writer().done());

    private final byte[] fields;

    private GroupPart(byte[] fields) {
        this.fields = fields;
    }

    /** A lane, of a native group. */
    public static GroupPart lane(int streamlet, int lane) {
        return new GroupPart(new Wire.Writer().present(3, streamlet).present(4, lane).done());
    }

    /** A stream, of a group of Kafka's clients; also one that it has no offsets in yet. */
    public static GroupPart stream(String stream) {
        return new GroupPart(new Wire.Writer().text(5, stream).done());
    }

    /** A partition as Kafka's clients count, of a group of theirs. */
    public static GroupPart partition(String stream, int partition) {
        return new GroupPart(new Wire.Writer().text(5, stream).present(6, partition).done());
    }

    /** The request that has a group go on elsewhere. */
    byte[] request(String group, StartAt to) {
        return new Wire.Writer().text(1, group).bytes(2, to.encoded()).message(fields).done();
    }
}
