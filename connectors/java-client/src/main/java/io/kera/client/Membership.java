package io.kera.client;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * A member of a consumer group: what to ask of the coordinator and when, and what its answers mean. A state machine
 * without I/O; it is told the time by {@link System#nanoTime}. Not thread-safe.
 *
 * <p>At most one call of each kind is under way. A call that was not answered may have been done; each is such that it
 * can be made again: a lease whose grant was lost ends by the heartbeats that do not list it, and a commit that was done
 * already is no news.
 */
final class Membership {
    /** What is asked of a coordinator. */
    enum Kind {
        JOIN(10_000),
        HEARTBEAT(3_000),
        ACQUIRE(ACQUIRE_WAIT_MILLIS + 5_000),
        COMMIT(10_000),
        LEAVE(10_000);

        /** How long the answer is waited for. What the coordinator holds in memory is answered soon. */
        final int withinMillis;

        Kind(int withinMillis) {
            this.withinMillis = withinMillis;
        }
    }

    /** Commits in one request. */
    static final int MOST_COMMITS = 512;
    static final int ACQUIRE_WAIT_MILLIS = 10_000;

    /** What is passed over since others have its keys is committed so often, also where the application commits itself. */
    private static final long SKIPPED_NANOS = TimeUnit.MILLISECONDS.toNanos(500);
    private static final long FIRST_PAUSE = TimeUnit.MILLISECONDS.toNanos(20);
    private static final long LONGEST_PAUSE = TimeUnit.SECONDS.toNanos(1);
    /** A coordinator may hear of a stream so much later than other brokers. */
    private static final long UNHEARD = TimeUnit.SECONDS.toNanos(30);

    /**
     * A call to make.
     *
     * @param member who asks; empty: nobody yet
     * @param leases of a heartbeat: those held. One is listed until its release is answered.
     * @param room of a request for leases: how many
     * @param commits of a commit
     */
    record Call(Kind kind, String member, List<Long> leases, int room, List<LeaseCommit> commits) {}

    private final class Line {
        private Call underWay;
        private long since;
        private long notBefore = now;
        private int failures;

        private boolean isFree() {
            return underWay == null && notBefore - now <= 0;
        }

        private Call begin(Call call) {
            underWay = call;
            since = now;
            return call;
        }

        private void pause() {
            notBefore = now + Math.min(FIRST_PAUSE << Math.min(failures, 10), LONGEST_PAUSE);
            failures++;
        }
    }

    private final LeaseTable leases = new LeaseTable();
    private final int maxLeases;
    private final long commitNanos;
    private final Line[] lines = new Line[Kind.values().length];
    /**
     * Leases whose grant came late: the coordinator may have ended them meanwhile, since heartbeats did not list them, and
     * given their records to others. They are listed, and read once a heartbeat is answered that lists them.
     */
    private final List<Lease> unsure = new ArrayList<>();
    private final List<Lease> granted = new ArrayList<>();
    private final List<Lease> ended = new ArrayList<>();
    private long now;
    private String member = "";
    /** False until the coordinator has confirmed the membership. */
    private boolean joined;
    private long joiningSince;
    private long heartbeatNanos = LONGEST_PAUSE;
    private long nextCommit;
    private boolean commitWanted;
    /** Commits wait for transactions; when they are sent again. */
    private boolean held;
    private long heldUntil;
    private int heldTimes;
    private boolean closing;
    private boolean left;
    /** It left with progress that was not committed. */
    private boolean lost;
    private KeraException failure;

    /**
     * A member that is yet to join.
     *
     * @param maxLeases how many it wants to hold
     * @param commitNanos what is processed is committed so often; 0: only on {@link #wantCommit} and at the end of a lease
     */
    Membership(int maxLeases, long commitNanos, long now) {
        this.maxLeases = maxLeases;
        this.commitNanos = commitNanos;
        this.now = now;
        joiningSince = now;
        nextCommit = now + commitPause();
        for (Kind kind : Kind.values()) {
            lines[kind.ordinal()] = new Line();
        }
    }

    /** The leases. Deliver and process by it; it is changed by answers. */
    LeaseTable leases() {
        return leases;
    }

    /** Who it is; empty: nobody yet. */
    String member() {
        return member;
    }

    boolean isJoined() {
        return joined;
    }

    /** Why the membership ended for good; null: it has not. */
    KeraException failure() {
        return failure;
    }

    /** True once it has left. */
    boolean hasLeft() {
        return left;
    }

    /** True if it left without a commit of all progress, since the group did not know it any more. */
    boolean hasLost() {
        return lost;
    }

    /** All progress is to be committed now. */
    void wantCommit() {
        commitWanted = true;
    }

    /** A transaction has committed positions, or it is not known that it has: then the coordinator says where to go on. */
    void transactionEnded(Map<Lease, Long> positions, boolean isCommitted) {
        if (isCommitted) {
            positions.forEach(leases::committedByTransaction);
        } else {
            ended.addAll(leases.giveUp(positions.keySet()));
        }
    }

    /** What was delivered and is not committed is delivered again: its leases are given back as they are committed. */
    void rewind() {
        ended.addAll(leases.giveUp(leases.ahead()));
    }

    /** No more leases are asked for; those held are given back, and once what is processed is committed it leaves. */
    void close() {
        closing = true;
        ended.addAll(leases.giveBack(leases.ids()));
    }

    /** The calls to make now. Each is under way until it is answered or has failed. */
    List<Call> due(long time) {
        now = time;
        List<Call> calls = new ArrayList<>();
        if (failure != null || left) {
            return calls;
        }
        if (!joined) {
            if (closing && line(Kind.JOIN).underWay == null) {
                leaveAsUnknown();
            } else if (line(Kind.JOIN).isFree()) {
                calls.add(begin(Kind.JOIN, List.of(), 0, List.of()));
            }
            return calls;
        }
        if (line(Kind.HEARTBEAT).isFree()) {
            List<Long> listed = new ArrayList<>(leases.ids());
            unsure.forEach(lease -> listed.add(lease.id()));
            calls.add(begin(Kind.HEARTBEAT, listed, 0, List.of()));
        }
        int room = maxLeases - leases.active() - unsure.size();
        if (!closing && room > 0 && line(Kind.ACQUIRE).isFree()) {
            calls.add(begin(Kind.ACQUIRE, List.of(), room, List.of()));
        }
        commit(calls);
        if (closing && !leases.hasUncommitted() && line(Kind.COMMIT).underWay == null && line(Kind.LEAVE).isFree()) {
            calls.add(begin(Kind.LEAVE, List.of(), 0, List.of()));
        }
        return calls;
    }

    private void commit(List<Call> calls) {
        if (nextCommit - now <= 0) {
            nextCommit = now + commitPause();
            commitWanted |= commitNanos > 0;
            leases.commitSkipped();
        }
        if (held && heldUntil - now <= 0) {
            held = false;
            leases.askAgain();
            commitWanted = true;
        }
        if (line(Kind.COMMIT).isFree()) {
            List<LeaseCommit> due = leases.due(commitWanted || closing, MOST_COMMITS);
            if (due.size() < MOST_COMMITS) {
                commitWanted = false;
            }
            if (!due.isEmpty()) {
                calls.add(begin(Kind.COMMIT, List.of(), 0, due));
            }
        }
    }

    private long commitPause() {
        return commitNanos > 0 ? commitNanos : SKIPPED_NANOS;
    }

    private Call begin(Kind kind, List<Long> listed, int room, List<LeaseCommit> commits) {
        return line(kind).begin(new Call(kind, member, listed, room, commits));
    }

    private Line line(Kind kind) {
        return lines[kind.ordinal()];
    }

    /** When {@link #due} may have something without anything else happening. */
    long nextDue(long time) {
        long next = time + LONGEST_PAUSE;
        for (Line line : lines) {
            if (line.underWay == null && line.notBefore - time > 0 && line.notBefore - next < 0) {
                next = line.notBefore;
            }
        }
        if (held && heldUntil - next < 0) {
            next = heldUntil;
        }
        return nextCommit - next < 0 ? nextCommit : next;
    }

    /** Ends a call; false if it is not the one that is under way: what it says is of no use any more. */
    private boolean end(Call call, long time) {
        now = time;
        Line line = line(call.kind());
        if (line.underWay != call) {
            return false;
        }
        line.underWay = null;
        return true;
    }

    /** The coordinator knows the member, under this name and wants to hear of it so often. */
    void joinedAs(Call call, String name, int heartbeatMillis, long time) {
        if (!end(call, time)) {
            return;
        }
        line(Kind.JOIN).failures = 0;
        if (!name.equals(member)) {
            ended.addAll(leases.lostAll());
            unsure.clear();
        }
        member = name;
        joined = true;
        heartbeatNanos = TimeUnit.MILLISECONDS.toNanos(Math.max(1, heartbeatMillis));
        for (Line line : lines) {
            line.notBefore = now;
        }
        line(Kind.HEARTBEAT).notBefore = now + heartbeatNanos;
    }

    void heartbeatAnswered(Call call, List<Long> lost, List<Long> giveBack, long time) {
        if (!succeeded(call, time)) {
            return;
        }
        List<Lease> told = unsure.stream().filter(lease -> call.leases().contains(lease.id())).toList();
        unsure.removeAll(told);
        line(Kind.HEARTBEAT).notBefore = unsure.isEmpty() ? now + heartbeatNanos : now;
        take(told.stream().filter(lease -> !lost.contains(lease.id())).toList());
        ended.addAll(leases.lost(lost));
        ended.addAll(leases.giveBack(giveBack));
    }

    void acquired(Call call, List<Lease> leased, long time) {
        long asked = line(Kind.ACQUIRE).since;
        if (!succeeded(call, time)) {
            return;
        }
        if (leased.isEmpty() || now - asked < heartbeatNanos) {
            take(leased);
        } else {
            unsure.addAll(leased);
            line(Kind.HEARTBEAT).notBefore = now;
        }
    }

    /** Leases to read. Those that come to a member that is closing end as it leaves. */
    private void take(List<Lease> leased) {
        if (!closing) {
            leased.forEach(leases::insert);
            granted.addAll(leased);
        }
    }

    /**
     * A commit was answered.
     *
     * @param stale leases that had ended before
     * @param pending leases of which transactions that have not ended commit positions: nothing of them was done
     */
    void committed(Call call, List<Long> stale, List<Long> pending, long time) {
        if (!succeeded(call, time)) {
            return;
        }
        ended.addAll(leases.commitDone(call.commits(), stale, pending));
        if (!pending.isEmpty()) {
            heldUntil = now + Math.min(FIRST_PAUSE << Math.min(heldTimes, 10), LONGEST_PAUSE);
            heldTimes++;
            held = true;
        } else if (!held) {
            heldTimes = 0;
        }
    }

    void leaveAnswered(Call call, long time) {
        if (succeeded(call, time)) {
            left = true;
        }
    }

    private void leaveAsUnknown() {
        lost = leases.hasUncommitted();
        ended.addAll(leases.lostAll());
        unsure.clear();
        left = true;
    }

    /** True if the answer is to the call under way, and to who the member is now. */
    private boolean succeeded(Call call, long time) {
        if (!end(call, time)) {
            return false;
        }
        line(call.kind()).failures = 0;
        return call.member().equals(member);
    }

    /**
     * A call was refused, or its answer does not come: then {@code error} is null.
     */
    void failed(Call call, KeraException error, long time) {
        if (!end(call, time)) {
            return;
        }
        line(call.kind()).pause();
        if (!call.member().equals(member)) {
            return;
        }
        leases.commitFailed(call.commits());
        commitWanted |= call.kind() == Kind.COMMIT;
        if (error == null || ErrorCodes.isRetryable(error.code())) {
            return;
        }
        boolean unknown = error.code() == ErrorCodes.UNKNOWN_MEMBER || error.code() == ErrorCodes.UNKNOWN_CONSUMER_GROUP;
        if (unknown && closing) {
            // The group has no such member any more: there is nothing to leave, and nothing can be committed.
            leaveAsUnknown();
        } else if (unknown && call.kind() != Kind.JOIN) {
            if (joined) {
                joined = false;
                joiningSince = now;
                line(Kind.JOIN).notBefore = now;
            }
        } else if (!(error.code() == ErrorCodes.UNKNOWN_STREAM && call.kind() == Kind.JOIN && now - joiningSince < UNHEARD)) {
            failure = error;
        }
    }

    /** The leases to read from here on. */
    List<Lease> takeGranted() {
        List<Lease> taken = new ArrayList<>(granted);
        granted.clear();
        return taken;
    }

    /** The leases to read no more. */
    List<Lease> takeEnded() {
        List<Lease> taken = new ArrayList<>(ended);
        ended.clear();
        return taken;
    }
}
