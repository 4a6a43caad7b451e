package io.kera.client;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.Closeable;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.net.SocketTimeoutException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** Frames over a connection, after the hello. One thread may send while another receives. */
final class FrameChannel implements Closeable {
    static final int APPEND = 1;
    static final int READ = 3;
    static final int GO_AWAY = 9;
    static final int PING = 10;
    static final int PONG = 11;
    static final int CALL = 12;
    private static final int TAKES_CALLS = 1;
    private static final int PREFIX = 12;
    private static final int HELLO_REPLY = 12;
    private static final byte[] HELLO = {'K', 'E', 'R', 'A', 1, 0, 0, 0};
    private static final byte[] NOTHING = {};
    private static final int BUFFER = 64 << 10;

    /** A frame as it came. */
    record Frame(int kind, int correlation, ByteBuffer header, ByteBuffer body) {}

    private final String address;
    private final Channel channel;
    private final DataInputStream in;
    private final OutputStream out;
    private final int flags;
    private final int maxFrame;

    FrameChannel(String address, ConnectOptions options) throws IOException {
        this.address = address;
        channel = options.connect(address);
        try {
            in = new DataInputStream(new BufferedInputStream(channel.in(), BUFFER));
            out = new BufferedOutputStream(channel.out(), BUFFER);
            out.write(HELLO);
            out.flush();
            ByteBuffer reply = ByteBuffer.wrap(in.readNBytes(HELLO_REPLY)).order(ByteOrder.LITTLE_ENDIAN);
            if (reply.remaining() == 0) {
                throw new EOFException("the connection to broker " + address
                        + " ended before it said anything; it may be stopping, or want TLS");
            }
            if (reply.remaining() < HELLO_REPLY || reply.getInt() != 0x4152454b) {
                throw new IOException("broker " + address
                        + " does not speak Kera's protocol; check the port, and whether it wants TLS");
            }
            int version = reply.getShort();
            if (version != 1) {
                throw new IOException("broker " + address + " speaks version " + version + " of the protocol, this client 1");
            }
            flags = reply.getShort();
            maxFrame = reply.getInt();
        } catch (SocketTimeoutException error) {
            channel.close();
            throw new IOException("broker " + address + " cannot be reached: it does not answer: " + error.getMessage(), error);
        } catch (IOException | RuntimeException error) {
            channel.close();
            throw error;
        }
    }

    String address() {
        return address;
    }

    /** False for brokers of before control calls as frames. */
    boolean takesCalls() {
        return (flags & TAKES_CALLS) != 0;
    }

    /** Longest wait of {@link #receive}, milliseconds; 0 is for ever. */
    void readTimeout(int millis) throws IOException {
        channel.readTimeout(millis);
    }

    /** Waits until something has come, at most so many milliseconds; false: nothing. */
    boolean hasInput(int millis) throws IOException {
        channel.readTimeout(millis);
        in.mark(1);
        try {
            if (in.read() < 0) {
                throw new EOFException("the connection to broker " + address + " ended");
            }
            in.reset();
            return true;
        } catch (SocketTimeoutException error) {
            return false;
        }
    }

    /** Sends a frame once {@link #flush} is called, or earlier. */
    void send(int kind, int correlation, byte[] header, byte[] body) throws IOException {
        send(kind, correlation, header, body, 0, body.length);
    }

    private void send(int kind, int correlation, byte[] header, byte[] body, int at, int length) throws IOException {
        ByteBuffer prefix = ByteBuffer.allocate(PREFIX).order(ByteOrder.LITTLE_ENDIAN);
        prefix.putInt(PREFIX - 4 + header.length + length).put((byte) kind).put((byte) 1);
        prefix.putShort((short) header.length).putInt(correlation);
        synchronized (out) {
            out.write(prefix.array());
            out.write(header);
            out.write(body, at, length);
        }
    }

    void flush() throws IOException {
        synchronized (out) {
            out.flush();
        }
    }

    /**
     * The next frame. Pings are answered by the way.
     *
     * @throws LoginException if the broker wants a login
     * @throws IOException if the broker closed the connection, and says why
     */
    Frame receive() throws IOException {
        while (true) {
            Frame frame = next();
            if (frame.kind() == PING) {
                send(PONG, frame.correlation(), NOTHING, NOTHING);
                flush();
            } else if (frame.kind() == GO_AWAY) {
                KeraException why = refusal(frame.header());
                if (why != null && why.code() == ErrorCodes.NOT_AUTHORIZED) {
                    throw new LoginException("broker " + address + " asks its clients who they are: give the connection a user's "
                            + "name and password, or a certificate that names one");
                }
                String told = why == null ? "without a word" : why.getMessage();
                throw new IOException("broker " + address + " closed the connection: " + told);
            } else {
                return frame;
            }
        }
    }

    private Frame next() throws IOException {
        byte[] prefix = new byte[PREFIX];
        in.readFully(prefix);
        long length = Integer.toUnsignedLong(ByteBuffer.wrap(prefix).order(ByteOrder.LITTLE_ENDIAN).getInt());
        if (length < PREFIX - 4 || length + 4 > Integer.toUnsignedLong(maxFrame) || length > Integer.MAX_VALUE) {
            throw new IOException("broker " + address + " sent a frame of " + length + " bytes");
        }
        byte[] rest = in.readNBytes((int) length - (PREFIX - 4));
        if (rest.length < length - (PREFIX - 4)) {
            throw new EOFException("the connection to broker " + address + " ended within a frame");
        }
        return parse(prefix, rest);
    }

    static Frame parse(byte[] prefix, byte[] rest) throws IOException {
        ByteBuffer head = ByteBuffer.wrap(prefix).order(ByteOrder.LITTLE_ENDIAN);
        int header = Short.toUnsignedInt(head.getShort(6));
        if (head.get(5) != 1 || header > rest.length) {
            throw new IOException("a frame of version " + head.get(5) + " with a header of " + header + " bytes cannot be read");
        }
        ByteBuffer bytes = ByteBuffer.wrap(rest);
        return new Frame(head.get(4), head.getInt(8), bytes.slice(0, header), bytes.slice(header, rest.length - header));
    }

    /** The error of a header whose fields 1 and 2 are a code and a message; null if there is none. */
    static KeraException refusal(ByteBuffer header) {
        int error = 0;
        String message = "";
        Wire.Reader fields = new Wire.Reader(header.duplicate());
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> error = (int) fields.varint();
                case 2 -> message = fields.text();
                default -> fields.skip();
            }
        }
        return error == 0 ? null : new KeraException(error, message);
    }

    @Override
    public void close() throws IOException {
        channel.close();
    }
}
