package io.kera.client;

import java.time.Duration;
import java.util.List;
import java.util.Objects;

/** A pin to be: see {@link Admin#createPin}. Immutable. */
public final class PinRequest {
    private final String stream;
    private final String name;
    private final List<LanePosition> positions;
    private String job = "";
    private Pin.Policy policy = Pin.Policy.WARN;
    private Duration maxAge;
    private Long maxBytes;
    private byte[] streamId = {};

    private PinRequest(String stream, String name, List<LanePosition> positions) {
        this.stream = Objects.requireNonNull(stream);
        this.name = Objects.requireNonNull(name);
        this.positions = List.copyOf(positions);
    }

    private PinRequest copy() {
        PinRequest copy = new PinRequest(stream, name, positions);
        copy.job = job;
        copy.policy = policy;
        copy.maxAge = maxAge;
        copy.maxBytes = maxBytes;
        copy.streamId = streamId;
        return copy;
    }

    /**
     * A pin of policy {@link Pin.Policy#WARN}, within the brokers' bounds: a week and 10 GiB.
     *
     * @param name 1 to 200 bytes without blanks
     * @param positions one for each lane that the stream has: the least ordinal that is needed
     */
    public static PinRequest of(String stream, String name, List<LanePosition> positions) {
        return new PinRequest(stream, name, positions);
    }

    /** With what it is for, such as the name of a job. */
    public PinRequest withJob(String text) {
        PinRequest copy = copy();
        copy.job = Objects.requireNonNull(text);
        return copy;
    }

    /** With what retention does about it. {@link Pin.Policy#WAIT} needs the operation {@code alter-configs} on the stream. */
    public PinRequest withPolicy(Pin.Policy wanted) {
        PinRequest copy = copy();
        copy.policy = Objects.requireNonNull(wanted);
        return copy;
    }

    /** It holds nothing back once it is older; to the millisecond. */
    public PinRequest withMaxAge(Duration age) {
        PinRequest copy = copy();
        copy.maxAge = Objects.requireNonNull(age);
        return copy;
    }

    /** It holds nothing back once that would be more bytes, over all lanes. */
    public PinRequest withMaxBytes(long bytes) {
        PinRequest copy = copy();
        copy.maxBytes = bytes;
        return copy;
    }

    /**
     * With the id of the stream that is meant, {@link StreamInfo#id}: another one that has its name by now is refused with
     * {@link ErrorCodes#UNKNOWN_STREAM}. Without it {@link Admin#createPin} looks the id up.
     */
    public PinRequest withStreamId(byte[] id) {
        PinRequest copy = copy();
        copy.streamId = id.clone();
        return copy;
    }

    String stream() {
        return stream;
    }

    boolean hasStreamId() {
        return streamId.length > 0;
    }

    byte[] encoded() {
        Wire.Writer out = new Wire.Writer().text(1, stream).text(2, name).text(3, job);
        for (LanePosition each : positions) {
            Wire.Writer at = new Wire.Writer().number(1, each.streamlet()).number(2, each.lane());
            out.bytes(4, at.number(3, each.ordinal()).done());
        }
        if (maxAge != null) {
            out.present(5, maxAge.toMillis());
        }
        if (maxBytes != null) {
            out.present(6, maxBytes);
        }
        return out.number(7, policy.ordinal() + 1).bytes(8, streamId).done();
    }
}
