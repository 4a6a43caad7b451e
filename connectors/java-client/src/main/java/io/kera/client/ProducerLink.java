package io.kera.client;

import io.kera.client.FrameChannel.Frame;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** What a producer sends to one broker: a thread that writes, and one that reads while there is a connection. */
final class ProducerLink {
    private static final int PING_AFTER_TIMEOUTS = 1;
    private static final long FIRST_PAUSE_MILLIS = 10;
    private static final long LONGEST_PAUSE_MILLIS = 1000;

    /** An attempt whose answer is awaited. */
    record Attempt(ProducerLane lane, SealedBatch batch, int number) {}

    private record Request(Attempt attempt, byte[] header, byte[] bytes) {}

    private final String address;
    private final Producer producer;
    private final LinkedBlockingQueue<ProducerLane> ready = new LinkedBlockingQueue<>();
    private final Thread writer;
    private volatile boolean closed;
    private volatile Wire live;
    private long pauseMillis;
    /** Why there is no connection, once there was none. */
    private IOException unreached;

    ProducerLink(String address, Producer producer) {
        this.address = address;
        this.producer = producer;
        writer = new Thread(this::write, "kera-producer-" + address);
        writer.setDaemon(true);
        writer.start();
    }

    /** The lane may have something to send. Call it with the lane's lock. */
    void ready(ProducerLane lane) {
        if (!lane.scheduled) {
            lane.scheduled = true;
            ready.add(lane);
        }
    }

    private void write() {
        try {
            while (!closed) {
                ProducerLane lane = ready.poll();
                if (lane == null) {
                    flush();
                    lane = ready.take();
                }
                serve(lane);
            }
        } catch (InterruptedException error) {
            // It is closed.
        } finally {
            Wire wire = live;
            if (wire != null) {
                wire.lose("the producer was closed");
            }
        }
    }

    private void flush() {
        Wire wire = live;
        if (wire != null) {
            try {
                wire.frames.flush();
            } catch (IOException error) {
                wire.lose(error.getMessage());
            }
        }
    }

    private void serve(ProducerLane lane) throws InterruptedException {
        synchronized (lane) {
            if (lane.link != this) {
                lane.scheduled = false;
                lane.link.ready(lane);
                return;
            }
        }
        Wire wire = connected();
        if (wire == null) {
            waitOn(lane);
            return;
        }
        List<Request> requests = new ArrayList<>();
        synchronized (lane) {
            lane.scheduled = false;
            if (lane.link != this) {
                lane.link.ready(lane);
                return;
            }
            for (SealedBatch batch : lane.queue.takeToSend(!producer.isPaused())) {
                requests.add(new Request(new Attempt(lane, batch, batch.attempt), producer.header(lane), batch.bytes));
            }
        }
        wire.send(requests);
    }

    /** There is no connection: the lane stays on the list as long as it has something to send. */
    private void waitOn(ProducerLane lane) {
        synchronized (lane) {
            lane.queue.notReached(unreached);
            if (lane.link == this && lane.queue.isEmpty()) {
                lane.scheduled = false;
            } else {
                // Its owner may be another one meanwhile.
                ready.add(lane);
            }
        }
    }

    /** The connection; null after a pause if there is none. */
    private Wire connected() throws InterruptedException {
        Wire wire = live;
        if (wire != null && !wire.lost) {
            return wire;
        }
        try {
            wire = new Wire(new FrameChannel(address, producer.connect()));
            live = wire;
            pauseMillis = 0;
            return wire;
        } catch (IOException error) {
            unreached = error;
            producer.unreachable(error);
            pauseMillis = Math.min(LONGEST_PAUSE_MILLIS, Math.max(FIRST_PAUSE_MILLIS, pauseMillis * 2));
            TimeUnit.MILLISECONDS.sleep(pauseMillis);
            return null;
        }
    }

    /** Looks whether the broker still answers. Called from time to time. */
    void watch(long now, long timeoutNanos) {
        Wire wire = live;
        if (wire != null && !wire.lost) {
            wire.watch(now, timeoutNanos);
        }
    }

    void close() {
        closed = true;
        writer.interrupt();
        Wire wire = live;
        if (wire != null) {
            wire.lose("the producer was closed");
        }
    }

    /** One connection, and the attempts that it carries. */
    private final class Wire {
        private final FrameChannel frames;
        private final Map<Integer, Attempt> awaited = new ConcurrentHashMap<>();
        private volatile boolean lost;
        private volatile long heard = System.nanoTime();
        private volatile long pinged;
        private int correlation;

        Wire(FrameChannel frames) throws IOException {
            this.frames = frames;
            frames.readTimeout(0);
            Thread reader = new Thread(this::read, "kera-producer-" + address + "-answers");
            reader.setDaemon(true);
            reader.start();
        }

        void send(List<Request> requests) {
            for (Request request : requests) {
                // 0 is for frames that answer nothing.
                correlation = correlation + 1 & Integer.MAX_VALUE;
                if (awaited.isEmpty()) {
                    heard = System.nanoTime();
                }
                awaited.put(correlation | 1 << 31, request.attempt());
                try {
                    frames.send(FrameChannel.APPEND, correlation | 1 << 31, request.header(), request.bytes());
                } catch (IOException error) {
                    lose(error.getMessage());
                }
            }
            if (lost) {
                // Whoever lost it may have looked before these were there.
                lose("the connection was lost");
            }
        }

        private void read() {
            try {
                while (true) {
                    Frame frame = frames.receive();
                    heard = System.nanoTime();
                    if (frame.kind() == FrameChannel.APPEND + 1) {
                        Attempt attempt = awaited.remove(frame.correlation());
                        if (attempt != null) {
                            producer.answered(attempt, AppendReply.read(frame.header()));
                        }
                    }
                }
            } catch (IOException | RuntimeException error) {
                lose(error.getMessage());
            }
        }

        void watch(long now, long timeoutNanos) {
            if (awaited.isEmpty() || now - heard < PING_AFTER_TIMEOUTS * timeoutNanos) {
                return;
            }
            if (pinged - heard <= 0) {
                pinged = now;
                try {
                    frames.send(FrameChannel.PING, 0, new byte[0], new byte[0]);
                    frames.flush();
                } catch (IOException error) {
                    lose(error.getMessage());
                }
            } else if (now - pinged > timeoutNanos) {
                lose("broker " + address + " does not answer");
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
                Attempt attempt = awaited.remove(each);
                if (attempt != null) {
                    producer.answered(attempt, AppendReply.lost("the connection to broker " + address + " was lost: " + why));
                }
            }
        }
    }
}
