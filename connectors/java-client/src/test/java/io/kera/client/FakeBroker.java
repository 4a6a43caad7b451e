package io.kera.client;

import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntFunction;

/** A broker that answers as a test says, or stands still. */
public final class FakeBroker implements AutoCloseable {
    /** What it answers. */
    interface Answers {
        /** The reply's body; its header is {@code header}'s. */
        byte[] body(FrameChannel.Frame request) throws Exception;

        default byte[] header(FrameChannel.Frame request) throws Exception {
            return new byte[0];
        }
    }

    private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    private final List<Socket> sockets = new ArrayList<>();
    private final AtomicInteger accepted = new AtomicInteger();
    private final AtomicInteger asked = new AtomicInteger();
    private final CountDownLatch answering;
    private final Answers answers;

    private FakeBroker(Answers answers, boolean answersAtOnce) throws IOException {
        this.answers = answers;
        answering = new CountDownLatch(answersAtOnce ? 0 : 1);
        start(this::accept);
    }

    /** Takes connections, and says nothing. */
    public static FakeBroker standingStill() throws IOException {
        return new FakeBroker(null, true);
    }

    /** Says hello, and answers nothing before {@link #goOn}. */
    static FakeBroker late(Answers answers) throws IOException {
        return new FakeBroker(answers, false);
    }

    /** Tells how a stream looks, with its streamlets' owners as they are then. */
    public static FakeBroker lookup(StreamInfo stream, IntFunction<String> owner) throws IOException {
        return new FakeBroker(request -> described(stream, owner), true);
    }

    /** A stream with one lane, of which this broker is the owner. */
    public static StreamInfo stream(String name, String owner) {
        return new StreamInfo(name, new byte[16], 0, 1, true, 1 << 20, false, List.of(new StreamInfo.Streamlet(0, owner)));
    }

    /** Answers reads with no records: they go on at an ordinal, and the lane has records up to its head. */
    public static FakeBroker readsNothing(long next, long head) throws IOException {
        return new FakeBroker(new Answers() {
            @Override
            public byte[] body(FrameChannel.Frame request) {
                return new byte[0];
            }

            @Override
            public byte[] header(FrameChannel.Frame request) {
                return new Wire.Writer().bytes(3, new Wire.Writer().number(1, next).done()).number(4, head).done();
            }
        }, true);
    }

    /** As the other {@code lookup}, and passes other calls on. */
    static FakeBroker lookup(StreamInfo stream, IntFunction<String> owner, Cluster others) throws IOException {
        return new FakeBroker(request -> {
            int method = method(request);
            ByteBuffer asked = request.body().duplicate();
            byte[] message = new byte[asked.remaining()];
            asked.get(message);
            if (method == Methods.GET_STREAM) {
                return described(stream, owner);
            }
            ByteBuffer told = others.call(method, message);
            byte[] reply = new byte[told.remaining()];
            told.get(reply);
            return reply;
        }, true);
    }

    static int method(FrameChannel.Frame request) {
        Wire.Reader fields = new Wire.Reader(request.header().duplicate());
        return fields.next() == 1 ? (int) fields.varint() : 0;
    }

    static byte[] described(StreamInfo stream, IntFunction<String> owner) {
        byte[] config = new Wire.Writer().number(2, 1).number(14, stream.partitions()).done();
        Wire.Writer message = new Wire.Writer().text(1, stream.name()).bytes(2, stream.id()).bytes(3, config);
        for (StreamInfo.Streamlet each : stream.streamlets()) {
            message.bytes(4, new Wire.Writer().number(1, each.number()).text(2, owner.apply(each.number())).done());
        }
        return message.done();
    }

    /** HOST:PORT. */
    public String address() {
        return "127.0.0.1:" + listener.getLocalPort();
    }

    /** Connections so far. */
    public int accepted() {
        return accepted.get();
    }

    /** Requests so far. */
    int asked() {
        return asked.get();
    }

    /** Answers what it was asked, and what it is asked from here on. */
    void goOn() {
        answering.countDown();
    }

    private void start(Runnable what) {
        Thread thread = new Thread(what, "fake-broker");
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() {
        try {
            while (true) {
                Socket socket = listener.accept();
                accepted.incrementAndGet();
                synchronized (sockets) {
                    sockets.add(socket);
                }
                if (answers != null) {
                    start(() -> serve(socket));
                }
            }
        } catch (IOException error) {
            // It is closed.
        }
    }

    private void serve(Socket socket) {
        try (socket) {
            DataInputStream in = new DataInputStream(socket.getInputStream());
            in.skipNBytes(8);
            ByteBuffer hello = little(12).putInt(0x4152454b).putShort((short) 1).putShort((short) 1).putInt(1 << 20);
            socket.getOutputStream().write(hello.array());
            while (true) {
                byte[] prefix = new byte[12];
                in.readFully(prefix);
                byte[] rest = in.readNBytes(ByteBuffer.wrap(prefix).order(ByteOrder.LITTLE_ENDIAN).getInt() - 8);
                FrameChannel.Frame request = FrameChannel.parse(prefix, rest);
                asked.incrementAndGet();
                answering.await();
                byte[] header = answers.header(request);
                byte[] body = answers.body(request);
                ByteBuffer reply = little(12 + header.length + body.length).putInt(8 + header.length + body.length);
                reply.put((byte) (request.kind() + 1)).put((byte) 1).putShort((short) header.length);
                reply.putInt(request.correlation()).put(header).put(body);
                socket.getOutputStream().write(reply.array());
            }
        } catch (Exception error) {
            // The connection ended.
        }
    }

    private static ByteBuffer little(int bytes) {
        return ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    @Override
    public void close() throws IOException {
        listener.close();
        answering.countDown();
        synchronized (sockets) {
            for (Socket socket : sockets) {
                socket.close();
            }
        }
    }
}
