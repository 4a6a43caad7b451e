package io.kera.client;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** One connection to a broker. Requests follow each other; after an {@link IOException} that is no {@link KeraException} it is of no use. */
final class Connection implements AutoCloseable {
    static final int READ = 3;
    static final int GO_AWAY = 9;
    static final int PING = 10;
    static final int PONG = 11;
    static final int CALL = 12;
    private static final int TAKES_CALLS = 1;
    private static final int PREFIX = 12;
    private static final int HELLO_REPLY = 12;
    private static final byte[] HELLO = {'K', 'E', 'R', 'A', 1, 0, 0, 0};

    record Frame(int kind, int correlation, ByteBuffer header, ByteBuffer body) {}

    private final String address;
    private final Socket socket = new Socket();
    private final DataInputStream in;
    private final int flags;
    private final int maxFrame;
    private int correlation;

    Connection(String address, int timeoutMillis) throws IOException {
        this.address = address;
        int colon = address.lastIndexOf(':');
        if (colon < 1) {
            throw new IllegalArgumentException("\"" + address + "\" is not a broker address: use HOST:PORT");
        }
        String host = address.substring(0, colon).replaceAll("^\\[|\\]$", "");
        try {
            socket.setTcpNoDelay(true);
            socket.setSoTimeout(timeoutMillis);
            socket.connect(new InetSocketAddress(host, Integer.parseInt(address.substring(colon + 1))), timeoutMillis);
            in = new DataInputStream(new BufferedInputStream(socket.getInputStream(), 1 << 16));
            socket.getOutputStream().write(HELLO);
            ByteBuffer reply = ByteBuffer.wrap(in.readNBytes(HELLO_REPLY)).order(ByteOrder.LITTLE_ENDIAN);
            if (reply.remaining() < HELLO_REPLY || reply.getInt() != 0x4152454b) {
                throw new IOException("broker " + address + " does not speak Kera's protocol; check the port");
            }
            int version = reply.getShort();
            if (version != 1) {
                throw new IOException("broker " + address + " speaks version " + version + " of the protocol, this client 1");
            }
            flags = reply.getShort();
            maxFrame = reply.getInt();
        } catch (IOException | RuntimeException error) {
            socket.close();
            throw error;
        }
    }

    /** A control call; the reply's message. */
    synchronized ByteBuffer call(int method, byte[] request) throws IOException {
        if ((flags & TAKES_CALLS) == 0) {
            throw new IOException("broker " + address + " takes no control calls as frames; update the broker");
        }
        byte[] header = new Wire.Writer().number(1, method).number(2, socket.getSoTimeout()).done();
        Frame reply = ask(CALL, header, request);
        int error = 0;
        String message = "";
        Wire.Reader fields = new Wire.Reader(reply.header());
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> error = (int) fields.varint();
                case 2 -> message = fields.text();
                default -> fields.skip();
            }
        }
        if (error != 0) {
            throw new KeraException(error, message);
        }
        return reply.body();
    }

    /** Sends a request and waits for its reply. */
    synchronized Frame ask(int kind, byte[] header, byte[] body) throws IOException {
        int mine = ++correlation;
        send(kind, mine, header, body);
        while (true) {
            Frame frame = receive();
            if (frame.kind() == PING) {
                send(PONG, frame.correlation(), new byte[0], new byte[0]);
            } else if (frame.kind() == GO_AWAY) {
                throw goAway(frame);
            } else if (frame.kind() == kind + 1 && frame.correlation() == mine) {
                return frame;
            } else {
                throw new IOException("broker " + address + " sent a frame of kind " + frame.kind() + " that nobody asked for");
            }
        }
    }

    private IOException goAway(Frame frame) {
        int error = 0;
        String message = "";
        Wire.Reader fields = new Wire.Reader(frame.header());
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> error = (int) fields.varint();
                case 2 -> message = fields.text();
                default -> fields.skip();
            }
        }
        return new IOException("broker " + address + " closed the connection: " + message + " (error " + error + ")");
    }

    private void send(int kind, int correlation, byte[] header, byte[] body) throws IOException {
        socket.getOutputStream().write(frame(kind, correlation, header, body));
    }

    static byte[] frame(int kind, int correlation, byte[] header, byte[] body) {
        ByteBuffer out = ByteBuffer.allocate(PREFIX + header.length + body.length).order(ByteOrder.LITTLE_ENDIAN);
        out.putInt(PREFIX - 4 + header.length + body.length).put((byte) kind).put((byte) 1);
        out.putShort((short) header.length).putInt(correlation).put(header).put(body);
        return out.array();
    }

    private Frame receive() throws IOException {
        byte[] prefix = new byte[PREFIX];
        in.readFully(prefix);
        long length = Integer.toUnsignedLong(ByteBuffer.wrap(prefix).order(ByteOrder.LITTLE_ENDIAN).getInt());
        if (length < PREFIX - 4 || length + 4 > Integer.toUnsignedLong(maxFrame)) {
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

    @Override
    public void close() throws IOException {
        socket.close();
    }
}
