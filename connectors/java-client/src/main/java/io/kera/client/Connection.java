package io.kera.client;

import java.io.IOException;
import java.nio.ByteBuffer;

/** One connection to a broker. Requests follow each other; after an {@link IOException} that is no {@link KeraException} it is of no use. */
final class Connection implements AutoCloseable {
    private final FrameChannel frames;
    private final int timeoutMillis;
    private int correlation;

    Connection(String address, ConnectOptions options) throws IOException {
        frames = new FrameChannel(address, options);
        timeoutMillis = options.timeoutMillis();
    }

    String address() {
        return frames.address();
    }

    /** Looks whether the broker takes calls. */
    void checkCalls() throws IOException {
        if (!frames.takesCalls()) {
            throw new IOException("broker " + address() + " takes no control calls as frames; update the broker");
        }
    }

    /** A control call; the reply's message. */
    synchronized ByteBuffer call(int method, byte[] request) throws IOException {
        return call(method, request, 0);
    }

    /** The same, where the broker may wait so long before it answers. */
    synchronized ByteBuffer call(int method, byte[] request, int waitMillis) throws IOException {
        checkCalls();
        int within = timeoutMillis + waitMillis;
        byte[] header = new Wire.Writer().number(1, method).number(2, within).done();
        FrameChannel.Frame reply = ask(FrameChannel.CALL, header, request, waitMillis);
        KeraException refused = FrameChannel.refusal(reply.header());
        if (refused != null) {
            throw refused;
        }
        return reply.body();
    }

    /** Sends a request and waits for its reply, which may come so much later than others. */
    synchronized FrameChannel.Frame ask(int kind, byte[] header, byte[] body, int waitMillis) throws IOException {
        int mine = ++correlation;
        frames.readTimeout(timeoutMillis + waitMillis);
        frames.send(kind, mine, header, body);
        frames.flush();
        FrameChannel.Frame frame = frames.receive();
        if (frame.kind() == kind + 1 && frame.correlation() == mine) {
            return frame;
        }
        throw new IOException("broker " + address() + " sent a frame of kind " + frame.kind() + " that nobody asked for");
    }

    @Override
    public void close() throws IOException {
        frames.close();
    }

    void closeQuietly() {
        try {
            close();
        } catch (IOException error) {
            // It is of no use any more.
        }
    }
}
