package io.kera.client;

import io.kera.client.AppendReply.Verdict;
import io.kera.client.SealedBatch.Status;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/**
 * The batches of one lane, in order: a state machine without I/O and without a clock. Not thread-safe.
 *
 * <p>A batch gets its sequence when it is first sent. After an answer other than "stored" nothing is sent until all
 * attempts are answered or their connection is gone; then the first batch is sent again, and once that is stored the
 * others follow. The broker recognises what it has stored already. A sequence that was used by a batch whose fate is
 * open is given to no other batch of the same producer epoch.
 */
final class LaneQueue {
    /** What {@link #recover} asks for. */
    enum Step {
        /** Nothing: an answer will bring it on. */
        NONE,
        /** {@link #takeToSend} has something. */
        SEND,
        /** Look again after the pause, or once the owner is known. */
        LATER,
        /** A new producer id, given by {@link #renewed}. */
        RENEW,
        /** The stream's lanes have grown: look them up, and split the records anew. */
        STALE
    }

    /** As many batches as a broker remembers of a producer. */
    static final int MOST_IN_FLIGHT = 16;

    private static final long FIRST_PAUSE = 10_000_000;
    private static final long LONGEST_PAUSE = 1_000_000_000;
    /** A new owner serves as soon as it can, and records wait meanwhile. */
    private static final long LONGEST_OWNER_PAUSE = 100_000_000;

    private enum Mode {
        RUNNING,
        RECOVERING,
        RENEWING
    }

    private final int streamlet;
    /** What a broker forgot of a stream in memory was promised to nobody. */
    private final boolean forgetful;
    /** What cannot go on as it is goes on under another epoch; not so a transaction, which is aborted. */
    private final boolean transactional;
    private final Deque<SealedBatch> queue = new ArrayDeque<>();
    private final ArrayList<SealedBatch> inFlight = new ArrayList<>();
    /** Given up before they were ever sent. */
    private final List<SealedBatch> unsent = new ArrayList<>();
    private Mode mode = Mode.RUNNING;
    /** Only the first batch is sent until it is stored. */
    private boolean probing;
    private int waiting;
    private long producer;
    private short epoch;
    private int nextSequence;
    /** The sequence that the broker expects after all batches whose fate is known. */
    private int resumeSequence;
    /** A batch was given up that may be stored: the broker may miss its sequences. */
    private boolean broken;
    /** A batch was given up that is not stored: those behind it need other sequences. */
    private boolean renumber;
    private int failures;
    private long notBefore;
    private boolean pauseBegun;
    private KeraException lastError;
    /** Why the owner was not reached, if it has not answered since. */
    private IOException unreached;
    private ProduceException failed;

    LaneQueue(int streamlet, boolean forgetful, long producer, short epoch) {
        this(streamlet, forgetful, false, producer, epoch);
    }

    LaneQueue(int streamlet, boolean forgetful, boolean transactional, long producer, short epoch) {
        this.transactional = transactional;
        this.streamlet = streamlet;
        this.forgetful = forgetful;
        this.producer = producer;
        this.epoch = epoch;
    }

    void add(SealedBatch batch) {
        queue.add(batch);
    }

    boolean isEmpty() {
        return queue.isEmpty() && inFlight.isEmpty();
    }

    /** True while what comes now must wait behind batches that are sent again, or for a connection. */
    boolean isHeldUp() {
        return mode != Mode.RUNNING || probing || (!queue.isEmpty() && inFlight.isEmpty());
    }

    boolean isRecovering() {
        return mode != Mode.RUNNING;
    }

    /** Why the lane takes no more records; null while it does. */
    ProduceException failed() {
        return failed;
    }

    KeraException lastError() {
        return lastError;
    }

    /**
     * The batches to send now, in order; each waits for its answer from here on.
     *
     * @param fresh false: only those that have been sent before
     */
    List<SealedBatch> takeToSend(boolean fresh) {
        List<SealedBatch> sendable = new ArrayList<>();
        if (mode != Mode.RUNNING) {
            return sendable;
        }
        for (SealedBatch batch : inFlight) {
            if (batch.status == Status.READY) {
                send(batch, sendable);
            }
            if (probing) {
                return sendable;
            }
        }
        while (fresh && inFlight.size() < MOST_IN_FLIGHT && !queue.isEmpty()) {
            SealedBatch batch = queue.remove();
            batch.baseSequence = nextSequence;
            if (transactional) {
                BatchBuilder.markTransactional(batch.bytes);
            }
            BatchBuilder.stamp(batch.bytes, producer, epoch, nextSequence);
            nextSequence = after(batch);
            inFlight.add(batch);
            send(batch, sendable);
        }
        return sendable;
    }

    private void send(SealedBatch batch, List<SealedBatch> sendable) {
        batch.attempt++;
        batch.status = Status.WAITING;
        waiting++;
        sendable.add(batch);
    }

    /** Sequences count records, and go on at 0 after 2^31 - 1. */
    private static int after(SealedBatch batch) {
        return batch.baseSequence + batch.records & Integer.MAX_VALUE;
    }

    /** The answer to an attempt, or that its connection ended. One that is not awaited any more is ignored. */
    void answered(SealedBatch batch, int attempt, AppendReply reply) {
        int index = inFlight.indexOf(batch);
        if (index < 0 || batch.attempt != attempt || batch.status != Status.WAITING) {
            return;
        }
        waiting--;
        unreached = null;
        if (reply.isStored()) {
            batch.status = Status.DONE;
            batch.first = new RecordPlace(streamlet, reply.lane(), reply.baseOrdinal(), reply.appendTime());
            failures = 0;
            lastError = null;
            return;
        }
        // That a batch is not stored yet does not settle an earlier attempt: it may still be on its way.
        batch.uncertain |= reply.isUncertain();
        Verdict verdict = reply.verdict();
        boolean follows = index > 0 && (verdict == Verdict.GAP || verdict == Verdict.UNKNOWN_PRODUCER);
        if (!follows || lastError == null) {
            lastError = reply.asException();
        }
        if (verdict == Verdict.REFUSED) {
            batch.giveUp("the broker refused a batch: " + reply.message(), batch.uncertain, reply.asException());
            if (index + 1 < inFlight.size()) {
                recover();
            }
        } else {
            batch.status = Status.READY;
            batch.why = verdict;
            recover();
        }
    }

    private void recover() {
        if (mode == Mode.RUNNING) {
            mode = Mode.RECOVERING;
        }
    }

    /** The streamlet has another owner: answers of the former one are not waited for any more. */
    void abandonAttempts() {
        for (SealedBatch batch : inFlight) {
            if (batch.status == Status.WAITING) {
                batch.status = Status.READY;
                batch.why = Verdict.RETRY;
                batch.uncertain = true;
            }
        }
        waiting = 0;
        if (!inFlight.isEmpty()) {
            recover();
            notBefore = 0;
        }
    }

    /** Takes off the batches whose fate is known: of those that were sent, as far as none is before them whose fate is not. */
    List<SealedBatch> takeDone() {
        List<SealedBatch> done = new ArrayList<>(unsent);
        unsent.clear();
        while (!inFlight.isEmpty() && inFlight.get(0).status == Status.DONE) {
            SealedBatch batch = inFlight.remove(0);
            if (batch.error == null) {
                resumeSequence = after(batch);
                broken = false;
            } else if (batch.error.isUncertain()) {
                resumeSequence = after(batch);
                broken = true;
            } else {
                renumber = true;
            }
            probing = false;
            done.add(batch);
        }
        if (inFlight.isEmpty()) {
            renumber = false;
            nextSequence = resumeSequence;
        }
        return done;
    }

    /** There is no connection to the owner. */
    void notReached(IOException why) {
        unreached = why;
    }

    /** Gives up what is past its deadline. */
    void expire(long now) {
        while (!queue.isEmpty() && queue.peek().deadline - now <= 0) {
            SealedBatch batch = queue.remove();
            batch.giveUp(overdue(), false, cause());
            unsent.add(batch);
        }
        for (SealedBatch batch : inFlight) {
            if (batch.status == Status.DONE || batch.deadline - now > 0) {
                continue;
            }
            if (batch.status == Status.WAITING) {
                waiting--;
                batch.uncertain = true;
            }
            batch.giveUp(overdue(), batch.uncertain, cause());
        }
    }

    private IOException cause() {
        return unreached == null ? lastError : unreached;
    }

    private String overdue() {
        String late = "a batch was not acknowledged before its deadline";
        if (unreached != null) {
            return late + "; " + unreached.getMessage();
        }
        return lastError == null ? late : late + "; the last answer was: " + lastError.getMessage();
    }

    /**
     * Looks after a lane after an answer that was not "stored". Call {@link #takeDone} afterwards.
     *
     * @param now by {@link System#nanoTime}
     */
    Step recover(long now) {
        while (mode == Mode.RECOVERING && waiting == 0) {
            if (!inFlight.isEmpty() && inFlight.get(0).status == Status.DONE) {
                // It is to be taken first: sequences follow from its fate.
                return Step.LATER;
            }
            if (transactional && isBeyondRepair()) {
                giveUpAll("the transaction cannot go on, and is to be aborted");
                renumber = false;
                return Step.LATER;
            }
            // None of them is stored, since what was refused before them is not.
            if (renumber && !renumbered()) {
                return Step.RENEW;
            }
            if (inFlight.isEmpty()) {
                mode = Mode.RUNNING;
                return Step.SEND;
            }
            SealedBatch front = inFlight.get(0);
            switch (front.why) {
                case STALE -> {
                    return Step.STALE;
                }
                case GAP -> {
                    if (broken && front.uncertain) {
                        // What was given up before it may arrive late, together with an attempt at this one.
                        front.giveUp("the fate of a batch before it is not known", true, lastError);
                        return Step.LATER;
                    }
                    if (!broken && !forgetful) {
                        fail();
                        return Step.LATER;
                    }
                    if (!goOnAnew()) {
                        return Step.RENEW;
                    }
                }
                case UNKNOWN_PRODUCER -> {
                    if (front.uncertain) {
                        front.giveUp("the broker knows nothing of the producer any more", true, lastError);
                        return Step.LATER;
                    }
                    if (!goOnAnew()) {
                        return Step.RENEW;
                    }
                }
                default -> {
                    return retry(now);
                }
            }
        }
        return mode == Mode.RUNNING ? Step.SEND : Step.NONE;
    }

    /** True if what is in flight needs other sequences, or the broker misses what came before it. */
    private boolean isBeyondRepair() {
        Verdict why = inFlight.isEmpty() ? Verdict.RETRY : inFlight.get(0).why;
        return renumber || why == Verdict.GAP || why == Verdict.UNKNOWN_PRODUCER;
    }

    private Step retry(long now) {
        if (!pauseBegun) {
            boolean owner = lastError != null && ErrorCodes.asksForOwner(lastError.code());
            long pause = Math.min(FIRST_PAUSE << Math.min(failures, 20), owner ? LONGEST_OWNER_PAUSE : LONGEST_PAUSE);
            notBefore = failures == 0 ? now : now + pause;
            pauseBegun = true;
        }
        if (notBefore - now > 0) {
            return Step.LATER;
        }
        pauseBegun = false;
        failures++;
        mode = Mode.RUNNING;
        probing = true;
        for (SealedBatch batch : inFlight) {
            // What the others were refused for may be that the first one was.
            batch.why = Verdict.RETRY;
        }
        return Step.SEND;
    }

    /** The broker misses sequences that it had acknowledged: order cannot be kept. */
    private void fail() {
        failed = new ProduceException(
                "streamlet " + streamlet + ": the broker misses batches that it had acknowledged", false, lastError);
        giveUpAll(failed.getMessage());
    }

    /** Gives up everything. */
    void giveUpAll(String why) {
        for (SealedBatch batch : inFlight) {
            if (batch.status != Status.DONE) {
                batch.giveUp(why, batch.uncertain || batch.status == Status.WAITING, lastError);
            }
        }
        waiting = 0;
        for (SealedBatch batch : queue) {
            batch.giveUp(why, false, lastError);
            unsent.add(batch);
        }
        queue.clear();
        mode = Mode.RUNNING;
    }

    /** Gives those in flight the sequences of what was refused before them. False: a new producer id is needed. */
    private boolean renumbered() {
        for (SealedBatch batch : inFlight) {
            if (batch.uncertain) {
                return goOnAnew();
            }
        }
        restamp();
        return true;
    }

    /** Goes on with the next epoch, whose first batch fences what of this one may still be on its way. */
    private boolean goOnAnew() {
        if (epoch == Short.MAX_VALUE) {
            mode = Mode.RENEWING;
            return false;
        }
        beginAs(producer, (short) (epoch + 1));
        restamp();
        return true;
    }

    /** The next transaction is of this epoch. Nothing is left of the one before. */
    void goOnAs(long newProducer, short newEpoch) {
        beginAs(newProducer, newEpoch);
        renumber = false;
        probing = false;
        failures = 0;
        pauseBegun = false;
        lastError = null;
    }

    private void beginAs(long newProducer, short newEpoch) {
        producer = newProducer;
        epoch = newEpoch;
        resumeSequence = 0;
        nextSequence = 0;
        broken = false;
    }

    /** The new id that was asked for. */
    void renewed(long newProducer, short newEpoch) {
        if (mode == Mode.RENEWING) {
            beginAs(newProducer, newEpoch);
            restamp();
            mode = Mode.RECOVERING;
        }
    }

    /** No new id could be had: it is asked for again. */
    void notRenewed() {
        if (mode == Mode.RENEWING) {
            mode = Mode.RECOVERING;
        }
    }

    /** Gives all in flight new sequences. None of them is stored. */
    private void restamp() {
        int sequence = resumeSequence;
        for (SealedBatch batch : inFlight) {
            // The old bytes may be on their way into a socket.
            batch.bytes = batch.bytes.clone();
            batch.baseSequence = sequence;
            BatchBuilder.stamp(batch.bytes, producer, epoch, sequence);
            batch.uncertain = false;
            batch.why = Verdict.RETRY;
            sequence = after(batch);
        }
        nextSequence = sequence;
        renumber = false;
    }

    /** True if nothing that has a sequence is stored whose fate is open: records can be split anew. */
    boolean isQuiet() {
        if (waiting > 0 || mode == Mode.RENEWING) {
            return false;
        }
        for (SealedBatch batch : inFlight) {
            if (batch.status == Status.DONE) {
                continue;
            }
            if (batch.why == Verdict.STALE) {
                // Nothing behind a refused batch can have been stored.
                return true;
            }
            if (batch.why != Verdict.GAP && batch.uncertain) {
                return false;
            }
        }
        return true;
    }

    /** The lanes have not grown after all, or not yet: what was refused for it is sent again. */
    void stayAsSplit() {
        for (SealedBatch batch : inFlight) {
            if (batch.why == Verdict.STALE || batch.why == Verdict.GAP) {
                batch.why = Verdict.RETRY;
            }
        }
    }

    /** Takes out everything that is not done, so that it can be split anew. Only if {@link #isQuiet}. */
    List<SealedBatch> takeAll() {
        List<SealedBatch> taken = new ArrayList<>();
        boolean uncertain = false;
        for (SealedBatch batch : inFlight) {
            uncertain |= batch.uncertain;
            taken.add(batch);
        }
        if (uncertain && transactional) {
            for (SealedBatch batch : inFlight) {
                if (batch.status != Status.DONE) {
                    batch.giveUp("the stream's lanes have grown, and it is not known what of a transaction is stored", true,
                            lastError);
                }
            }
        }
        inFlight.clear();
        taken.addAll(queue);
        queue.clear();
        // What is gone from here was never stored: the broker still expects this sequence. Attempts that may be on
        // their way would be taken for batches that get it now.
        nextSequence = resumeSequence;
        if (uncertain && !transactional && epoch < Short.MAX_VALUE) {
            beginAs(producer, (short) (epoch + 1));
        }
        renumber = false;
        mode = Mode.RUNNING;
        probing = false;
        failures = 0;
        pauseBegun = false;
        return taken;
    }
}
