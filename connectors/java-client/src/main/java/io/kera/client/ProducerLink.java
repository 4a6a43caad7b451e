package io.kera.client;

import io.kera.client.FrameChannel.Frame;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** What a producer sends to one broker: the batches of the lanes that have something to send. */
final class ProducerLink extends BrokerLink<ProducerLane, ProducerLink.Attempt> {
    private static final long FIRST_PAUSE_MILLIS = 10;
    private static final long LONGEST_PAUSE_MILLIS = 1000;
    /** A broker that is silent for so long, and again after so long, may not be the owner any more. */
    private static final long SILENCE_NANOS = 1_000_000_000;

    /** An attempt whose answer is awaited. */
    record Attempt(ProducerLane lane, SealedBatch batch, int number) {}

    private record Append(Attempt attempt, byte[] header, byte[] bytes) {}

    private final Producer producer;
    private long pauseMillis;
    private long pinged = System.nanoTime();
    private long looked = System.nanoTime();

    ProducerLink(String address, Producer producer) {
        super(address, producer.connect(), "kera-producer-" + address);
        this.producer = producer;
        start();
    }

    /** The lane may have something to send. Call it with the lane's lock. */
    void ready(ProducerLane lane) {
        if (!lane.scheduled) {
            lane.scheduled = true;
            add(lane);
        }
    }

    @Override
    void serve(ProducerLane lane) throws InterruptedException {
        if (passedOn(lane)) {
            return;
        }
        Line line;
        try {
            line = connected();
            pauseMillis = 0;
        } catch (IOException error) {
            producer.unreachable();
            pauseMillis = Math.min(LONGEST_PAUSE_MILLIS, Math.max(FIRST_PAUSE_MILLIS, pauseMillis * 2));
            TimeUnit.MILLISECONDS.sleep(pauseMillis);
            waitOn(lane, error);
            return;
        }
        List<Append> appends = new ArrayList<>();
        synchronized (lane) {
            if (passedOn(lane)) {
                return;
            }
            lane.scheduled = false;
            for (SealedBatch batch : lane.queue.takeToSend(producer.maySend(lane))) {
                appends.add(new Append(new Attempt(lane, batch, batch.attempt), producer.header(lane), batch.bytes));
            }
        }
        for (Append each : appends) {
            line.send(FrameChannel.APPEND, each.header(), each.bytes(), each.attempt());
        }
    }

    /** True if another link has the lane by now. */
    private boolean passedOn(ProducerLane lane) {
        synchronized (lane) {
            if (lane.link == this) {
                return false;
            }
            lane.scheduled = false;
            lane.link.ready(lane);
            return true;
        }
    }

    /** There is no connection: the lane stays on the list as long as it has something to send. */
    private void waitOn(ProducerLane lane, IOException why) {
        synchronized (lane) {
            lane.queue.notReached(why);
            if (lane.link == this && lane.queue.isEmpty()) {
                lane.scheduled = false;
            } else {
                // Its owner may be another one meanwhile.
                add(lane);
            }
        }
    }

    @Override
    void answered(Attempt attempt, Frame frame) {
        producer.answered(attempt, AppendReply.read(frame.header()));
    }

    @Override
    void lost(Attempt attempt, IOException why) {
        producer.answered(attempt, AppendReply.lost(why));
    }

    /** Looks whether the broker still answers. Called from time to time, by one thread. */
    void watch(long now, long timeoutNanos) {
        Line line = live();
        if (line == null || line.awaitsNothing()) {
            return;
        }
        long heard = line.heard();
        if (now - heard >= SILENCE_NANOS && now - looked >= SILENCE_NANOS) {
            looked = now;
            producer.unreachable();
        }
        if (now - heard < timeoutNanos) {
            return;
        }
        if (pinged - line.heard() <= 0) {
            pinged = now;
            wantPing();
        } else if (now - pinged > timeoutNanos) {
            line.lose(new IOException("it does not answer"));
        }
    }
}
