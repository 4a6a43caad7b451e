package io.kera.client;

import io.kera.client.LaneQueue.Step;
import io.kera.client.ProducerLane.Split;
import io.kera.client.ProducerLink.Attempt;
import io.kera.client.SealedBatch.Status;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.locks.LockSupport;

/** A producer's background thread: linger, recovery, deadlines, owners, growth of lanes. */
final class ProducerDriver {
    private static final long BUSY_NANOS = 2_000_000;
    private static final long IDLE_NANOS = 50_000_000;

    private record Lingering(ProducerLane lane, long number, long due) {}

    private final Producer producer;
    private final StreamInfo first;
    private final MetadataWatch metadata;
    private final ProducerOptions options;
    private final Cluster.ProducerId id;
    private final ProducerTransaction transaction;
    private final ConcurrentLinkedQueue<Lingering> lingering = new ConcurrentLinkedQueue<>();
    private final Set<ProducerLane> attention = ConcurrentHashMap.newKeySet();
    private final Map<String, ProducerLink> links = new ConcurrentHashMap<>();
    private final Object splitting = new Object();
    private final Thread thread;
    private volatile boolean closed;
    /** Lanes have grown, or are about to: nothing is sent for the first time. */
    private volatile boolean paused;

    ProducerDriver(Producer producer, String stream, StreamInfo first, Cluster cluster, ProducerOptions options)
            throws IOException {
        this.producer = producer;
        this.first = first;
        this.options = options;
        if (options.transactionalId().isEmpty()) {
            transaction = null;
            id = cluster.newProducer(stream);
        } else {
            if (first.inMemory()) {
                throw new IllegalArgumentException("stream " + stream
                        + " has ack = memory, which promises nothing that a transaction needs; alter it to written or synced");
            }
            transaction = new ProducerTransaction(first, options, this::added);
            id = transaction.identity();
        }
        metadata = new MetadataWatch(stream, cluster, "kera-producer-" + stream + "-owners", this::wake);
        thread = new Thread(this::run, "kera-producer-" + stream);
        thread.setDaemon(true);
    }

    void start() {
        thread.start();
    }

    Split firstSplit() {
        return split(first, new ProducerLane[0]);
    }

    /** The lanes of a stream, those that are there among them. */
    private Split split(StreamInfo info, ProducerLane[] known) {
        int streamlets = info.streamlets().size();
        ProducerLane[] lanes = new ProducerLane[info.byKey() ? info.partitions() : streamlets];
        Split split = new Split(info.laneGeneration(), info.partitions(), lanes);
        for (int n = 0; n < lanes.length; n++) {
            if (n < known.length) {
                lanes[n] = known[n];
                continue;
            }
            int streamlet = Partitions.streamlet(n, streamlets);
            int lane = info.byKey() ? Partitions.lane(n, streamlets) : laneOf(info, streamlet);
            Cluster.ProducerId as = transaction == null ? id : transaction.identity();
            LaneQueue queue = new LaneQueue(streamlet, info.inMemory(), transaction != null, as.id(), as.epoch());
            lanes[n] = new ProducerLane(n, streamlet, lane, queue);
            lanes[n].split = split;
            lanes[n].link = link(info.owner(streamlet));
        }
        return split;
    }

    /** The lane of a streamlet where lanes are not chosen by key: those of a transaction are known to its coordinator. */
    private int laneOf(StreamInfo info, int streamlet) {
        if (transaction == null) {
            return ProducerLane.ANY;
        }
        int lanes = Partitions.lanes(streamlet, info.streamlets().size(), info.partitions());
        return (int) Long.remainderUnsigned(id.id(), Math.max(1, lanes));
    }

    /** The transaction of a producer with a transactional id; null without. */
    ProducerTransaction transaction() {
        return transaction;
    }

    /** A lane is part of the transaction, or is not to be: what it has is sent, or given up. */
    private void added(ProducerLane lane, IOException refused) {
        List<SealedBatch> done = List.of();
        synchronized (lane) {
            if (refused == null) {
                goOn(lane);
            } else {
                lane.queue.giveUpAll("the lane cannot be part of the transaction: " + refused.getMessage());
                done = lane.queue.takeDone();
            }
        }
        producer.finish(done);
    }

    /** Gives up what is left of a transaction. */
    void giveUpTransaction() {
        for (ProducerLane lane : producer.split().lanes()) {
            List<SealedBatch> done;
            synchronized (lane) {
                if (lane.open() != null) {
                    producer.seal(lane);
                }
                lane.queue.giveUpAll("the transaction was aborted");
                done = lane.queue.takeDone();
            }
            producer.finish(done);
        }
    }

    /** The next transaction is of this epoch. */
    void goOnAs(Cluster.ProducerId identity) {
        for (ProducerLane lane : producer.split().lanes()) {
            synchronized (lane) {
                lane.queue.goOnAs(identity.id(), identity.epoch());
            }
        }
    }

    /** The link to an owner; to the first broker where there is none: it says who is. */
    private ProducerLink link(String owner) {
        String address = owner.isEmpty() ? options.bootstrap().get(0) : owner;
        return links.computeIfAbsent(address, each -> new ProducerLink(each, producer));
    }

    void linger(ProducerLane lane, long opened) {
        boolean idle = lingering.isEmpty();
        lingering.add(new Lingering(lane, lane.number(), opened + options.linger().toNanos()));
        if (idle) {
            wake();
        }
    }

    private void wake() {
        LockSupport.unpark(thread);
    }

    boolean isPaused() {
        return paused;
    }

    void unreachable() {
        metadata.want();
    }

    /** Waits until lanes that are split anew are there. */
    void awaitSplit() {
        synchronized (splitting) {
            // They are, once the lock is free.
        }
    }

    void answered(Attempt attempt, AppendReply answer) {
        AppendReply reply = seen(answer);
        ProducerLane lane = attempt.lane();
        List<SealedBatch> done;
        synchronized (lane) {
            lane.queue.answered(attempt.batch(), attempt.number(), reply);
            done = lane.queue.takeDone();
            goOn(lane);
        }
        if (!reply.isStored() && ErrorCodes.asksForOwner(reply.error())) {
            metadata.want();
        }
        producer.finish(done);
    }

    /** A stream that the user may not see any more is unknown to it: to ask again is of no use before the right is back. */
    private AppendReply seen(AppendReply reply) {
        if (reply.isStored()) {
            metadata.isSeen();
        }
        KeraException hidden = reply.error() == ErrorCodes.UNKNOWN_STREAM ? metadata.hidden() : null;
        if (hidden == null) {
            return reply;
        }
        // It may be back by the next batch.
        metadata.want();
        return new AppendReply(hidden.code(), hidden.getMessage(), 0, 0, 0, reply.placement());
    }

    private void goOn(ProducerLane lane) {
        if (lane.queue.isRecovering()) {
            if (attention.add(lane)) {
                wake();
            }
        } else if (!lane.queue.isEmpty()) {
            lane.link.ready(lane);
        }
    }

    private void run() {
        long looked = System.nanoTime();
        while (!closed) {
            long now = System.nanoTime();
            sealDue(now);
            boolean stale = settle(now);
            StreamInfo told = metadata.take();
            if (told != null) {
                apply(told);
            }
            if (metadata.gone() != null) {
                giveUp("stream " + first.name() + " was deleted: " + metadata.gone().getMessage());
            }
            if (stale || paused) {
                follow(told);
            }
            if (now - looked >= IDLE_NANOS) {
                looked = now;
                expire(now);
                links.values().forEach(link -> link.watch(now, options.connect().timeoutMillis() * 1_000_000L));
            }
            Lingering next = lingering.peek();
            long due = next == null ? IDLE_NANOS : next.due() - System.nanoTime();
            long pause = attention.isEmpty() && !paused ? IDLE_NANOS : BUSY_NANOS;
            if (Math.min(due, pause) > 0) {
                LockSupport.parkNanos(this, Math.min(due, pause));
            }
        }
    }

    /** Sends open batches that have waited long enough. */
    private void sealDue(long now) {
        for (Lingering each; (each = lingering.peek()) != null && each.due() - now <= 0; ) {
            lingering.remove();
            ProducerLane lane = each.lane();
            synchronized (lane) {
                if (lane.open() != null && lane.number() == each.number()) {
                    producer.seal(lane);
                }
            }
        }
    }

    /** Looks after the lanes that recover. True if one was refused since lanes have grown. */
    private boolean settle(long now) {
        boolean stale = false;
        for (ProducerLane lane : attention) {
            List<SealedBatch> done;
            Step step;
            synchronized (lane) {
                step = lane.queue.recover(now);
                done = lane.queue.takeDone();
                if (step == Step.SEND || step == Step.NONE) {
                    attention.remove(lane);
                    if (step == Step.SEND) {
                        lane.link.ready(lane);
                    }
                }
            }
            stale |= step == Step.STALE;
            if (step == Step.RENEW && !lane.renewing) {
                lane.renewing = true;
                metadata.renew(answer -> renewed(lane, answer));
            }
            producer.finish(done);
        }
        if (stale && !paused) {
            paused = true;
            metadata.wantNew();
        }
        return stale;
    }

    private void renewed(ProducerLane lane, Cluster.ProducerId answer) {
        synchronized (lane) {
            lane.renewing = false;
            if (answer == null) {
                lane.queue.notRenewed();
            } else {
                lane.queue.renewed(answer.id(), answer.epoch());
            }
            attention.add(lane);
        }
        wake();
    }

    /** Batches go to the owners that are told. */
    private void apply(StreamInfo told) {
        if (!java.util.Arrays.equals(told.id(), first.id())) {
            giveUp("stream " + first.name() + " was deleted, and another one has its name");
            return;
        }
        for (ProducerLane lane : producer.split().lanes()) {
            String owner = told.owner(lane.streamlet);
            synchronized (lane) {
                if (!owner.isEmpty() && lane.link != link(owner)) {
                    lane.link = link(owner);
                    lane.queue.abandonAttempts();
                    goOn(lane);
                }
            }
        }
    }

    /** Goes on after a growth: with the new lanes once nothing is under way, or as before if there are none. */
    private void follow(StreamInfo told) {
        StreamInfo latest = metadata.latest();
        Split now = producer.split();
        if (latest == null || latest.laneGeneration() <= now.generation() || !latest.byKey()) {
            if (told != null) {
                stayAsSplit(now);
            } else {
                metadata.want();
            }
            return;
        }
        for (ProducerLane lane : now.lanes()) {
            synchronized (lane) {
                if (!lane.queue.isQuiet()) {
                    return;
                }
            }
        }
        resplit(latest, now);
        paused = false;
        for (ProducerLane lane : producer.split().lanes()) {
            synchronized (lane) {
                goOn(lane);
            }
        }
    }

    private void stayAsSplit(Split now) {
        paused = false;
        for (ProducerLane lane : now.lanes()) {
            synchronized (lane) {
                lane.queue.stayAsSplit();
                goOn(lane);
            }
        }
    }

    private void resplit(StreamInfo latest, Split old) {
        List<SealedBatch> done = new ArrayList<>();
        synchronized (splitting) {
            Split next = split(latest, old.lanes());
            // All are taken before any is split: lanes that are taken from get records as well.
            List<List<SealedBatch>> taken = new ArrayList<>();
            for (ProducerLane lane : old.lanes()) {
                synchronized (lane) {
                    lane.split = next;
                    done.addAll(lane.queue.takeDone());
                    List<SealedBatch> batches = lane.queue.takeAll();
                    if (lane.open() != null) {
                        batches.add(producer.sealForSplit(lane));
                    }
                    taken.add(batches);
                }
            }
            Resplit resplit = producer.resplit(next.lanes());
            for (ProducerLane lane : old.lanes()) {
                for (SealedBatch batch : taken.get(lane.index)) {
                    split(resplit, lane, batch, done);
                }
            }
            resplit.finish();
            producer.publish(next);
        }
        producer.finish(done);
    }

    private static void split(Resplit resplit, ProducerLane lane, SealedBatch batch, List<SealedBatch> done) {
        if (batch.status == Status.DONE) {
            done.add(batch);
            return;
        }
        try {
            resplit.add(lane.index, batch);
        } catch (IOException error) {
            // A defect, told as one.
            batch.giveUp("a batch cannot be split for grown lanes: " + error.getMessage(), false, error);
            done.add(batch);
        }
    }

    private void expire(long now) {
        for (ProducerLane lane : producer.split().lanes()) {
            List<SealedBatch> done;
            synchronized (lane) {
                lane.queue.expire(now);
                done = lane.queue.takeDone();
                goOn(lane);
            }
            producer.finish(done);
        }
    }

    private void giveUp(String why) {
        for (ProducerLane lane : producer.split().lanes()) {
            List<SealedBatch> done;
            synchronized (lane) {
                lane.queue.giveUpAll(why);
                done = lane.queue.takeDone();
            }
            producer.finish(done);
        }
    }

    void close() {
        closed = true;
        wake();
        links.values().forEach(ProducerLink::close);
        if (transaction != null) {
            transaction.end();
        }
        metadata.close();
        giveUp("the producer was closed");
    }
}
