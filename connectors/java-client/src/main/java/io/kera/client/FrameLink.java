package io.kera.client;

import io.kera.client.FrameChannel.Frame;
import java.io.IOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * Requests to one broker, answered in any order: a thread that connects and writes, and one that reads while there is a
 * connection. After a lost connection the next request makes another one.
 */
final class FrameLink {
    /** Who waits for an answer. Told once, by a thread of the link. */
    interface Waiter {
        void answered(Frame frame);

        /** No answer comes. What was asked for may have been done. */
        void lost(IOException why);
    }

    private record Request(int kind, byte[] header, byte[] body, long deadline, Waiter waiter) {}

    private final String address;
    private final ConnectOptions options;
    private final String name;
    private final LinkedBlockingQueue<Request> requests = new LinkedBlockingQueue<>();
    private final Thread writer;
    private volatile boolean closed;
    private volatile Link live;

    /** A link to HOST:PORT whose threads have a name that begins so. */
    FrameLink(String address, ConnectOptions options, String name) {
        this.address = address;
        this.options = options;
        this.name = name + "-" + address;
        writer = new Thread(this::write, this.name);
        writer.setDaemon(true);
        writer.start();
    }

    String address() {
        return address;
    }

    /**
     * Sends a request.
     *
     * @param deadline by {@link System#nanoTime}: the connection counts as lost if there is no answer by then
     */
    void ask(int kind, byte[] header, byte[] body, long deadline, Waiter waiter) {
        Request request = new Request(kind, header, body, deadline, waiter);
        requests.add(request);
        if (closed && requests.remove(request)) {
            waiter.lost(new IOException("the connection to broker " + address + " was closed"));
        }
    }

    /** A control call. */
    void call(int method, byte[] request, int withinMillis, Waiter waiter) {
        byte[] header = new Wire.Writer().number(1, method).number(2, withinMillis).done();
        ask(FrameChannel.CALL, header, request, System.nanoTime() + withinMillis * 1_000_000L, waiter);
    }

    /** Gives the connection up if an answer is overdue. Called from time to time. */
    void watch(long now) {
        Link wire = live;
        if (wire != null && wire.awaited.values().stream().anyMatch(each -> each.deadline() - now < 0)) {
            wire.lose("it did not answer in time");
        }
    }

    private void write() {
        try {
            while (!closed) {
                Request request = requests.poll();
                if (request == null) {
                    flush();
                    request = requests.take();
                }
                Link wire = connected(request);
                if (wire != null) {
                    wire.send(request);
                }
            }
        } catch (InterruptedException error) {
            // It is closed.
        } finally {
            closed = true;
            Link wire = live;
            if (wire != null) {
                wire.lose("it was closed");
            }
            for (Request request; (request = requests.poll()) != null; ) {
                request.waiter().lost(new IOException("the connection to broker " + address + " was closed"));
            }
        }
    }

    private void flush() {
        Link wire = live;
        if (wire != null && !wire.lost) {
            try {
                wire.frames.flush();
            } catch (IOException error) {
                wire.lose(error.getMessage());
            }
        }
    }

    /** The connection; null if there is none, of which whoever waits for the request has heard. */
    private Link connected(Request request) {
        Link wire = live;
        if (wire != null && !wire.lost) {
            return wire;
        }
        try {
            wire = new Link(new FrameChannel(address, options));
            live = wire;
            wire.begin();
            return wire;
        } catch (IOException error) {
            request.waiter().lost(error);
            return null;
        }
    }

    void close() {
        closed = true;
        writer.interrupt();
        Link wire = live;
        if (wire != null) {
            wire.lose("it was closed");
        }
    }

    /** One connection, and what is awaited on it. */
    private final class Link {
        private final FrameChannel frames;
        private final Map<Integer, Request> awaited = new ConcurrentHashMap<>();
        private volatile boolean lost;
        private int correlation;

        Link(FrameChannel frames) throws IOException {
            this.frames = frames;
            frames.readTimeout(0);
        }

        void begin() {
            Thread reader = new Thread(this::read, name + "-answers");
            reader.setDaemon(true);
            reader.start();
        }

        void send(Request request) {
            if (request.kind() == FrameChannel.CALL && !frames.takesCalls()) {
                request.waiter().lost(new IOException(
                        "broker " + address + " takes no control calls as frames; update the broker"));
                return;
            }
            // 0 is for frames that answer nothing.
            correlation = correlation == Integer.MAX_VALUE ? 1 : correlation + 1;
            awaited.put(correlation, request);
            try {
                frames.send(request.kind(), correlation, request.header(), request.body());
            } catch (IOException error) {
                lose(error.getMessage());
            }
            if (lost) {
                // Whoever lost it may have looked before this one was there.
                lose("it was lost");
            }
        }

        private void read() {
            try {
                while (true) {
                    Frame frame = frames.receive();
                    Request request = awaited.remove(frame.correlation());
                    if (request == null) {
                        continue;
                    }
                    if (frame.kind() != request.kind() + 1) {
                        awaited.put(frame.correlation(), request);
                        throw new IOException("it sent a frame of kind " + frame.kind() + " that nobody asked for");
                    }
                    request.waiter().answered(frame);
                }
            } catch (IOException | RuntimeException error) {
                lose(error.getMessage());
            }
        }

        /** No answer comes any more. */
        void lose(String why) {
            lost = true;
            try {
                frames.close();
            } catch (IOException error) {
                // It is lost anyway.
            }
            for (Integer each : awaited.keySet()) {
                Request request = awaited.remove(each);
                if (request != null) {
                    request.waiter().lost(new IOException("the connection to broker " + address + " was lost: " + why));
                }
            }
        }
    }
}
