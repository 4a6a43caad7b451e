package io.kera.client;

import io.kera.client.FrameChannel.Frame;
import java.io.IOException;
import java.util.Collection;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Predicate;

/**
 * What is sent to one broker and answered in any order: a thread that connects and writes, and one that reads while there
 * is a connection. After a lost connection the next work makes another one.
 *
 * @param <W> work for the thread that writes
 * @param <A> what awaits an answer
 */
abstract class BrokerLink<W, A> {
    private record Awaited<A>(int kind, A what) {}

    private final String address;
    private final ConnectOptions options;
    private final String name;
    private final LinkedBlockingQueue<Optional<W>> work = new LinkedBlockingQueue<>();
    private final Thread writer;
    private volatile boolean closed;
    private volatile Line live;

    /** A link to HOST:PORT whose threads have that name. {@link #start} it. */
    BrokerLink(String address, ConnectOptions options, String name) {
        this.address = address;
        this.options = options;
        this.name = name;
        writer = new Thread(this::write, name);
        writer.setDaemon(true);
    }

    /** Does some work, on the thread that writes. */
    abstract void serve(W next) throws InterruptedException;

    /** What was sent is answered. Told once, by a thread of the link. */
    abstract void answered(A sent, Frame frame);

    /** No answer comes. What was asked for may have been done. Told once, by a thread of the link. */
    abstract void lost(A sent, IOException why);

    /** The link was closed before the work was begun. */
    void dropped(W left, IOException why) {}

    final void start() {
        writer.start();
    }

    final String address() {
        return address;
    }

    final void add(W next) {
        Optional<W> one = Optional.of(next);
        work.add(one);
        if (closed && work.remove(one)) {
            dropped(next, wasClosed());
        }
    }

    private IOException wasClosed() {
        return new IOException("the connection to broker " + address + " was closed");
    }

    private void write() {
        try {
            while (!closed) {
                Optional<W> next = work.poll();
                if (next == null) {
                    Line line = live();
                    if (line != null) {
                        line.flush();
                    }
                    next = work.take();
                }
                if (next.isPresent()) {
                    serve(next.get());
                } else {
                    ping();
                }
            }
        } catch (InterruptedException error) {
            // It is closed.
        } finally {
            close();
            for (Optional<W> left; (left = work.poll()) != null; ) {
                left.ifPresent(each -> dropped(each, wasClosed()));
            }
        }
    }

    /** Has the broker asked for a sign of life, by the thread that writes: a broker that reads nothing holds up who writes. */
    final void wantPing() {
        work.add(Optional.empty());
    }

    private void ping() {
        Line line = live();
        if (line != null) {
            line.ping();
        }
    }

    /** The connection there is; null: none. */
    final Line live() {
        Line line = live;
        return line == null || line.lost ? null : line;
    }

    /** The connection, which may be a new one. By the thread that writes. */
    final Line connected() throws IOException {
        Line line = live();
        if (line == null) {
            line = new Line(new FrameChannel(address, options));
            live = line;
            Thread reader = new Thread(line::read, name + "-answers");
            reader.setDaemon(true);
            reader.start();
            if (closed) {
                line.lose(wasClosed());
            }
        }
        return line;
    }

    final void close() {
        closed = true;
        writer.interrupt();
        Line line = live;
        if (line != null) {
            line.lose(wasClosed());
        }
    }

    /** One connection, and what awaits an answer on it. */
    final class Line {
        private final FrameChannel frames;
        private final Map<Integer, Awaited<A>> awaited = new ConcurrentHashMap<>();
        private volatile boolean lost;
        /** Why it was lost first. */
        private volatile IOException end;
        private volatile long heard = System.nanoTime();
        private int correlation;

        private Line(FrameChannel frames) throws IOException {
            this.frames = frames;
            frames.readTimeout(0);
        }

        /** False for brokers of before control calls as frames. */
        boolean takesCalls() {
            return frames.takesCalls();
        }

        /** When something came last, or nothing was awaited, by {@link System#nanoTime}. */
        long heard() {
            return heard;
        }

        boolean awaitsNothing() {
            return awaited.isEmpty();
        }

        /** True if something that awaits an answer is such. */
        boolean awaits(Predicate<A> which) {
            Collection<Awaited<A>> all = awaited.values();
            return all.stream().anyMatch(each -> which.test(each.what()));
        }

        /** Sends a request, once the link has nothing else to do. By the thread that writes. */
        void send(int kind, byte[] header, byte[] body, A what) {
            // 0 is for frames that answer nothing.
            correlation = correlation == Integer.MAX_VALUE ? 1 : correlation + 1;
            if (awaited.isEmpty()) {
                heard = System.nanoTime();
            }
            awaited.put(correlation, new Awaited<>(kind, what));
            try {
                frames.send(kind, correlation, header, body);
            } catch (IOException error) {
                lose(error);
            }
            if (lost) {
                // Whoever lost it may have looked before this was there.
                lose(end);
            }
        }

        private void ping() {
            try {
                frames.send(FrameChannel.PING, 0, new byte[0], new byte[0]);
                frames.flush();
            } catch (IOException error) {
                lose(error);
            }
        }

        private void flush() {
            try {
                frames.flush();
            } catch (IOException error) {
                lose(error);
            }
        }

        private void read() {
            try {
                while (true) {
                    Frame frame = frames.receive();
                    heard = System.nanoTime();
                    Awaited<A> request = awaited.remove(frame.correlation());
                    if (request == null) {
                        continue;
                    }
                    if (frame.kind() != request.kind() + 1) {
                        awaited.put(frame.correlation(), request);
                        throw new IOException("it sent a frame of kind " + frame.kind() + " that nobody asked for");
                    }
                    answered(request.what(), frame);
                }
            } catch (IOException error) {
                lose(error);
            } catch (RuntimeException error) {
                lose(new IOException("what it sent cannot be read: " + error.getMessage(), error));
            }
        }

        /** No answer comes any more. */
        void lose(IOException why) {
            if (end == null) {
                end = why;
            }
            lost = true;
            try {
                frames.close();
            } catch (IOException error) {
                // It is lost anyway.
            }
            for (Integer each : awaited.keySet()) {
                Awaited<A> request = awaited.remove(each);
                if (request != null) {
                    BrokerLink.this.lost(request.what(), asLost(why));
                }
            }
        }

        private IOException asLost(IOException why) {
            if (why instanceof LoginException) {
                return why;
            }
            String said = why.getMessage() == null ? "it ended" : why.getMessage();
            return new IOException("the connection to broker " + address + " was lost: " + said, why);
        }
    }
}
