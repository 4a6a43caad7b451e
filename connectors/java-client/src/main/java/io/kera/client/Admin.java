package io.kera.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** Creates, lists and deletes streams. Any broker answers. */
public final class Admin implements AutoCloseable {
    private static final int GET_STREAM = 1;
    private static final int LIST_STREAMS = 2;
    private static final int CREATE_STREAM = 3;
    private static final int DELETE_STREAM = 5;
    private static final int FIND_ORDINALS = 6;
    private final Connection connection;

    /**
     * Connects to a broker.
     *
     * @param address HOST:PORT
     * @param timeoutMillis how long connecting and each call may take
     */
    public Admin(String address, int timeoutMillis) throws IOException {
        connection = new Connection(address, timeoutMillis);
    }

    /** Creates a stream of so many streamlets, of so many lanes each. */
    public StreamInfo createStream(String name, int streamlets, int lanes) throws IOException {
        byte[] config = new Wire.Writer().present(1, streamlets).present(2, lanes).done();
        byte[] request = new Wire.Writer().text(1, name).bytes(2, config).done();
        return StreamInfo.read(connection.call(CREATE_STREAM, request));
    }

    /** Looks a stream up. */
    public StreamInfo stream(String name) throws IOException {
        return StreamInfo.read(connection.call(GET_STREAM, named(name)));
    }

    /** All streams, by name. */
    public List<StreamInfo> streams() throws IOException {
        List<StreamInfo> streams = new ArrayList<>();
        Wire.Reader fields = new Wire.Reader(connection.call(LIST_STREAMS, new byte[0]));
        for (int field; (field = fields.next()) != 0; ) {
            if (field == 1) {
                streams.add(StreamInfo.read(fields.part()));
            } else {
                fields.skip();
            }
        }
        return streams;
    }

    /** Deletes a stream and its records. */
    public void deleteStream(String name) throws IOException {
        connection.call(DELETE_STREAM, named(name));
    }

    /** Every lane of a stream, with the first ordinal that is stored and the one behind the last. */
    public List<LaneBounds> bounds(String name) throws IOException {
        byte[] earliest = new Wire.Writer().text(1, name).present(2, 1).done();
        List<LaneBounds> lanes = new ArrayList<>();
        Wire.Reader fields = new Wire.Reader(connection.call(FIND_ORDINALS, earliest));
        for (int field; (field = fields.next()) != 0; ) {
            if (field == 1) {
                lanes.add(lane(fields.part()));
            } else {
                fields.skip();
            }
        }
        return lanes;
    }

    private static LaneBounds lane(ByteBuffer in) {
        long[] numbers = new long[6];
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            if (field < numbers.length && field != 3) {
                numbers[field] = fields.varint();
            } else {
                fields.skip();
            }
        }
        return new LaneBounds((int) numbers[1], (int) numbers[2], numbers[5], numbers[4]);
    }

    private static byte[] named(String name) {
        return new Wire.Writer().text(1, name).done();
    }

    @Override
    public void close() throws IOException {
        connection.close();
    }

    /** What is stored of a lane: ordinals from {@code start} on, below {@code head}. */
    public record LaneBounds(int streamlet, int lane, long start, long head) {}
}
