package io.kera.client;

import java.io.IOException;
import java.io.InterruptedIOException;
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
    private static final String ENDED = "somebody else has ended the transaction while records were appended";

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
    private final PositionCalls groups;
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
    /** Something was asked for when it ended that may yet begin another transaction. */
    private boolean leftOpen;
    private Phase phase = Phase.NONE;
    private long number;
    /** Why a batch of it was given up. */
    private ProduceException failure;
    /** Which of this producer's transactions is open. */
    private long begun;
    /** Calls of it that send positions and are not answered. */
    private int sending;
    /** Whose consumers are told how it ends. */
    private final List<GroupPositions> sent = new ArrayList<>();
    private boolean ended;

    ProducerTransaction(StreamInfo stream, ProducerOptions options, BiConsumer<ProducerLane, IOException> told)
            throws IOException {
        this.stream = stream;
        this.id = options.transactionalId();
        this.timeoutMillis = options.transactionTimeout().toMillis();
        this.told = told;
        sendsHeartbeats = options.transactionHeartbeats();
        calls = new TransactionCalls(options.bootstrap(), options.connect(), options.deadline().toNanos());
        groups = new PositionCalls(options);
        try {
            began(calls.init(id, timeoutMillis, null, sendsHeartbeats));
        } catch (IOException | RuntimeException error) {
            calls.close();
            groups.close();
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
        sending = 0;
        begun++;
    }

    synchronized boolean takesRecords() {
        return phase == Phase.OPEN;
    }

    /** True while batches of it may be sent. */
    synchronized boolean sends() {
        return phase.sends();
    }

    /** The next one may begin. Consumers whose positions it had are told whether it is committed for certain. */
    void over(boolean isCommitted) {
        List<GroupPositions> tell;
        synchronized (this) {
            phase = Phase.NONE;
            tell = List.copyOf(sent);
            sent.clear();
        }
        tell.forEach(positions -> positions.ended(isCommitted));
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
        leftOpen = !asked.isEmpty() || sending > 0;
        spoilt |= number != 0 || leftOpen;
        TransactionHandle handle = number == 0 ? null : new TransactionHandle(id, identity.id(), identity.epoch(), number);
        phase = Phase.ENDING;
        number = 0;
        failure = null;
        added.clear();
        wanted.clear();
        asked.clear();
        notifyAll();
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

    /**
     * All batches of it were acknowledged, and it is committed or prepared for certain. The next one begins under the same epoch, unless
     * a lane was asked for that nobody waited for: under that epoch the request would be taken for the next one's.
     */
    synchronized void settled() {
        spoilt = leftOpen;
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
                refused = new IOException(ENDED);
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
        return calls.add(id, as, of.done(), List.of());
    }

    /**
     * Has the transaction commit positions of a group.
     *
     * @throws KeraException if a coordinator refuses them
     * @throws IOException if the transaction has failed before, or an answer did not come. After any the transaction can be aborted alone
     */
    void sendPositions(GroupPositions positions) throws IOException {
        Cluster.ProducerId as;
        long of;
        synchronized (this) {
            if (phase != Phase.OPEN) {
                throw new IllegalStateException("no transaction of the producer is open: begin one");
            }
            check();
            as = identity;
            of = begun;
            sending++;
            sent.add(positions);
        }
        IOException failed = new IOException("the call was given up before it was answered");
        try {
            groups.send(joinGroup(positions.group(), as, of), positions);
            failed = null;
        } catch (IOException error) {
            failed = error;
        } finally {
            sent(positions, of, failed);
        }
        if (failed != null) {
            throw failed;
        }
    }

    private synchronized void sent(GroupPositions positions, long of, IOException failed) throws IOException {
        if (of != begun || !phase.sends()) {
            // Whoever aborted it has told the consumer.
            throw new IOException("the transaction was aborted by another thread while " + positions + " were sent", failed);
        }
        sending--;
        if (failed != null) {
            fail(new ProduceException(positions + " could not be made part of the transaction: " + failed.getMessage(),
                    !(failed instanceof KeraException), failed));
            // The coordinator may have begun a transaction of which nothing is known here.
            spoilt = true;
        }
        notifyAll();
    }

    /** Makes a group part of the transaction; its handle. */
    private TransactionHandle joinGroup(String group, Cluster.ProducerId as, long of) throws IOException {
        long given = calls.add(id, as, null, List.of(group));
        TransactionHandle handle = new TransactionHandle(id, as.id(), as.epoch(), given);
        synchronized (this) {
            if (of != begun || !phase.sends()) {
                // The next one begins under another epoch, and ends what this may have begun.
                throw new IOException("the transaction was aborted by another thread");
            }
            if (number == 0 || number == given) {
                number = given;
                return handle;
            }
            fail(new ProduceException(ENDED, true, null));
        }
        abort(handle);
        throw new IOException(ENDED);
    }

    /** Waits for positions that other threads send. Their calls have deadlines. */
    synchronized void awaitPositions() throws IOException {
        long of = begun;
        while (sending > 0 && of == begun && phase.sends()) {
            try {
                wait();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                throw new InterruptedIOException("interrupted while positions were sent");
            }
        }
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
        groups.close();
    }
}
