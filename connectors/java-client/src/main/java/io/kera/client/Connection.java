package io.kera.client;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.nio.ByteBuffer;
import java.util.concurrent.TimeUnit;

/** One connection to a broker. Requests follow each other; after an {@link IOException} that is no {@link KeraException} it is of no use. */
final class Connection implements AutoCloseable {
    private static final long LOOK_NANOS = TimeUnit.MILLISECONDS.toNanos(20);

    private final FrameChannel frames;
    private final int timeoutMillis;
    private int correlation;
    /** The request whose answer was not there in time; null: none. */
    private Asked late;
    /** When it was looked for last. */
    private long looked;

    /** A request, and its answer once that has come. */
    final class Asked {
        private final int kind;
        private final int correlation;
        private final int waitMillis;
        private final long begun = System.nanoTime();
        private FrameChannel.Frame reply;

        private Asked(int kind, int correlation, int waitMillis) {
            this.kind = kind;
            this.correlation = correlation;
            this.waitMillis = waitMillis;
        }

        boolean isOf(Connection connection) {
            return connection == Connection.this;
        }
    }

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
        Asked asked = send(kind, header, body, waitMillis);
        receive(asked);
        return asked.reply;
    }

    /**
     * Sends a request whose reply {@link #answer} waits for. Nothing else can be asked meanwhile.
     *
     * @throws SilentBrokerException if the answer to another request has not come yet
     */
    synchronized Asked begin(int kind, byte[] header, byte[] body, int waitMillis) throws IOException {
        // Each look takes a millisecond: many lanes that ask in turn make one.
        if (late != null && (System.nanoTime() - looked < LOOK_NANOS || answer(late, 0) == null)) {
            throw new SilentBrokerException(silent(late));
        }
        return send(kind, header, body, waitMillis);
    }

    /** The reply; null if it does not come within so many milliseconds and may come later. */
    synchronized FrameChannel.Frame answer(Asked asked, int patienceMillis) throws IOException {
        if (asked.reply == null) {
            looked = System.nanoTime();
            int within = timeoutMillis + asked.waitMillis;
            if (!frames.hasInput(Math.max(1, patienceMillis))) {
                if (patienceMillis >= within || millisSince(asked) >= within) {
                    throw new IOException(silent(asked), new SocketTimeoutException());
                }
                late = asked;
                return null;
            }
            receive(asked);
            late = null;
        }
        return asked.reply;
    }

    /** What is told of a request without an answer. */
    synchronized String silent(Asked asked) {
        return "broker " + address() + " has not answered for " + millisSince(asked) + " ms";
    }

    private static long millisSince(Asked asked) {
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - asked.begun);
    }

    private Asked send(int kind, byte[] header, byte[] body, int waitMillis) throws IOException {
        Asked asked = new Asked(kind, ++correlation, waitMillis);
        frames.send(kind, asked.correlation, header, body);
        frames.flush();
        return asked;
    }

    private void receive(Asked asked) throws IOException {
        FrameChannel.Frame frame;
        try {
            frames.readTimeout(timeoutMillis + asked.waitMillis);
            frame = frames.receive();
        } catch (SocketTimeoutException error) {
            throw new IOException("broker " + address() + " does not answer: " + error.getMessage(), error);
        }
        if (frame.kind() != asked.kind + 1 || frame.correlation() != asked.correlation) {
            throw new IOException("broker " + address() + " sent a frame of kind " + frame.kind() + " that nobody asked for");
        }
        asked.reply = frame;
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
