package io.kera.client;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;

/**
 * The transaction of a producer with a transactional id, and the lanes that are part of it. A lane is added before its
 * first batch is sent, by a thread of its own.
 */
final class ProducerTransaction {
    private enum Phase {
        NONE,
        OPEN,
        /** No more records are taken, those that were are waited for. */
        CLOSING,
        /** Nothing of it is sent any more; how it ends is asked for. */
        ENDING;

        /** True while batches may be sent. */
        boolean sends() {
            return this == OPEN || this == CLOSING;
        }
    }

    private final StreamInfo stream;
    private final String id;
    private final long timeoutMillis;
    private final boolean sendsHeartbeats;
    private final TransactionCalls calls;
    /** Heartbeats have connections of their own: a call that is waited for must not hold them up. Null without. */
    private final TransactionCalls heartbeats;
    private final BiConsumer<ProducerLane, IOException> told;
    private final Thread thread;
    private final Set<ProducerLane> added = new HashSet<>();
    private final Set<ProducerLane> wanted = new LinkedHashSet<>();
    private final Set<ProducerLane> asked = new HashSet<>();
    /** Null without. */
    private final ScheduledExecutorService beats;
    private Cluster.ProducerId identity;
    /** How often heartbeats are expected; 0: none are. */
    private long heartbeatMillis;
    /** The next transaction begins under another epoch: batches of the one before may yet arrive. */
    private boolean spoilt;
    private Phase phase = Phase.NONE;
    private long number;
    /** Why a batch of it was given up. */
    private ProduceException failure;
    private boolean ended;

    ProducerTransaction(StreamInfo stream, ProducerOptions options, BiConsumer<ProducerLane, IOException> told)
            throws IOException {
        this.stream = stream;
        this.id = options.transactionalId();
        this.timeoutMillis = options.transactionTimeout().toMillis();
        this.told = told;
        sendsHeartbeats = options.transactionHeartbeats();
        calls = new TransactionCalls(options.bootstrap(), options.connect(), options.deadline().toNanos());
        try {
            began(calls.init(id, timeoutMillis, null, sendsHeartbeats));
        } catch (IOException | RuntimeException error) {
            calls.close();
            throw error;
        }
        thread = new Thread(this::run, "kera-producer-" + stream.name() + "-transaction");
        thread.setDaemon(true);
        thread.start();
        if (!sendsHeartbeats || heartbeatMillis == 0) {
            heartbeats = null;
            beats = null;
            return;
        }
        heartbeats = new TransactionCalls(options.bootstrap(), options.connect(), 0);
        beats = Executors.newSingleThreadScheduledExecutor(work -> {
            Thread made = new Thread(work, "kera-producer-" + stream.name() + "-heartbeats");
            made.setDaemon(true);
            return made;
        });
        beats.scheduleWithFixedDelay(this::heartbeat, heartbeatMillis, heartbeatMillis, TimeUnit.MILLISECONDS);
    }

    private synchronized void began(TransactionCalls.Begun begun) {
        identity = begun.identity();
        heartbeatMillis = begun.heartbeatMillis();
    }

    /** Tells that the producer of the open transaction lives. Does nothing while none has lanes. */
    private void heartbeat() {
        Cluster.ProducerId as;
        long of;
        synchronized (this) {
            if (!phase.sends() || number == 0) {
                return;
            }
            as = identity;
            of = number;
        }
        try {
            heartbeats.heartbeat(id, as);
        } catch (IOException | RuntimeException error) {
            if (error instanceof KeraException refused && refused.code() == ErrorCodes.FENCED_PRODUCER) {
                endedByOthers(as, of);
            }
            // After anything else the next one may arrive: the broker counts from the last that did.
        }
    }

    /** Somebody has ended the transaction: it cannot be committed. */
    private synchronized void endedByOthers(Cluster.ProducerId as, long of) {
        if (phase.sends() && as.equals(identity) && of == number) {
            fail(new ProduceException("somebody else has ended the transaction while its producer was alive", true, null));
        }
    }

    synchronized Cluster.ProducerId identity() {
        return identity;
    }

    /** Another epoch, if the next transaction needs one; otherwise null. */
    Cluster.ProducerId renewed() throws IOException {
        Cluster.ProducerId known;
        synchronized (this) {
            if (phase != Phase.NONE) {
                throw new IllegalStateException("a transaction of the producer is open: commit or abort it first");
            }
            if (!spoilt) {
                return null;
            }
            known = identity;
        }
        TransactionCalls.Begun next = calls.init(id, timeoutMillis, known, sendsHeartbeats);
        synchronized (this) {
            began(next);
            spoilt = false;
        }
        return next.identity();
    }

    synchronized void open() {
        phase = Phase.OPEN;
        number = 0;
        failure = null;
    }

    synchronized boolean takesRecords() {
        return phase == Phase.OPEN;
    }

    /** True while batches of it may be sent. */
    synchronized boolean sends() {
        return phase.sends();
    }

    /** The next one may begin. */
    synchronized void over() {
        phase = Phase.NONE;
    }

    synchronized void closing() {
        if (phase != Phase.OPEN) {
            throw new IllegalStateException("no transaction of the producer is open");
        }
        phase = Phase.CLOSING;
    }

    /**
     * Nothing of it is sent any more; its handle, or null if it has no lanes. Unless it is {@link #settled}, the next
     * one begins under another epoch.
     */
    synchronized TransactionHandle take() {
        spoilt |= number != 0 || !asked.isEmpty();
        TransactionHandle handle = number == 0 ? null : new TransactionHandle(id, identity.id(), identity.epoch(), number);
        phase = Phase.ENDING;
        number = 0;
        failure = null;
        added.clear();
        wanted.clear();
        asked.clear();
        return handle;
    }

    /**
     * As {@link #take}, of a transaction whose records are all acknowledged.
     *
     * @throws IOException if another thread has aborted it meanwhile
     */
    synchronized TransactionHandle takeClosed() throws IOException {
        if (phase != Phase.CLOSING) {
            throw new IOException("the transaction was aborted by another thread while its records were waited for");
        }
        return take();
    }

    synchronized boolean isClosing() {
        return phase == Phase.CLOSING;
    }

    /** A batch was given up: it cannot be committed. */
    synchronized void fail(ProduceException error) {
        if (phase.sends() && failure == null) {
            failure = error;
        }
    }

    /** Throws why a batch was given up. */
    synchronized void check() throws ProduceException {
        if (failure != null) {
            throw failure;
        }
    }

    /** All batches of it were acknowledged, and it is committed or prepared for certain. */
    synchronized void settled() {
        spoilt = false;
    }

    boolean end(TransactionHandle handle, boolean commit) throws IOException {
        return calls.end(handle, commit);
    }

    void prepare(TransactionHandle handle) throws IOException {
        calls.named(Methods.PREPARE_TRANSACTION, handle);
    }

    /** Whether batches of a lane may be sent. If it is no part of the transaction yet, it is to be. */
    synchronized boolean maySend(ProducerLane lane) {
        if (added.contains(lane)) {
            return true;
        }
        if (phase.sends() && !asked.contains(lane) && wanted.add(lane)) {
            notifyAll();
        }
        return false;
    }

    private void run() {
        while (true) {
            List<ProducerLane> lanes;
            Cluster.ProducerId as;
            synchronized (this) {
                while (wanted.isEmpty() && !ended) {
                    try {
                        wait();
                    } catch (InterruptedException error) {
                        return;
                    }
                }
                if (ended) {
                    return;
                }
                lanes = new ArrayList<>(wanted);
                wanted.clear();
                asked.addAll(lanes);
                as = identity;
            }
            IOException refused = null;
            long told = 0;
            try {
                told = add(lanes, as);
            } catch (IOException | RuntimeException error) {
                refused = error instanceof IOException io ? io : new IOException(error);
            }
            noted(lanes, as, told, refused);
        }
    }

    private void noted(List<ProducerLane> lanes, Cluster.ProducerId as, long given, IOException error) {
        IOException refused = error;
        TransactionHandle other = null;
        synchronized (this) {
            if (!as.equals(identity) || ended) {
                return;
            }
            boolean awaited = asked.removeAll(lanes);
            if (!awaited) {
                // It was given up meanwhile.
                return;
            }
            if (refused != null) {
                // The coordinator may have forgotten the id: then only beginning anew helps.
                spoilt |= number == 0;
            } else if (number != 0 && number != given) {
                // What was added before is no part of the other one: a commit would be of some of the records.
                other = new TransactionHandle(id, as.id(), as.epoch(), given);
                refused = new IOException("somebody else has ended the transaction while records were appended");
                fail(new ProduceException(refused.getMessage(), true, null));
            } else {
                added.addAll(lanes);
                number = given;
            }
        }
        for (ProducerLane lane : lanes) {
            told.accept(lane, refused);
        }
        if (other != null) {
            abort(other);
        }
    }

    private void abort(TransactionHandle other) {
        try {
            calls.end(other, false);
        } catch (IOException | RuntimeException left) {
            // It is aborted when the next one begins, or when its time is over.
        }
    }

    private long add(List<ProducerLane> lanes, Cluster.ProducerId as) throws IOException {
        Wire.Writer of = new Wire.Writer().bytes(1, stream.id());
        for (ProducerLane lane : lanes) {
            of.bytes(2, new Wire.Writer().number(1, lane.streamlet).number(2, lane.lane).done());
        }
        Wire.Writer request = new Wire.Writer().text(1, id).number(2, as.id()).number(3, as.epoch()).bytes(4, of.done());
        Wire.Reader fields = new Wire.Reader(calls.call(id, Methods.ADD_TO_TRANSACTION, request.done()));
        long given = 0;
        for (int field; (field = fields.next()) != 0; ) {
            if (field == 1) {
                given = fields.varint();
            } else {
                fields.skip();
            }
        }
        return given;
    }

    void end() {
        synchronized (this) {
            ended = true;
            notifyAll();
        }
        thread.interrupt();
        if (beats != null) {
            beats.shutdownNow();
            heartbeats.close();
        }
        calls.close();
    }
}
