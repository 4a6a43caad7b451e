package io.kera.client;

import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** The leases that a member holds, and how far each is delivered, processed and committed. No I/O, no clock. Not thread-safe. */
final class LeaseTable {
    /** Released leases that are remembered, so that a late commit of theirs is known to be done. */
    private static final int REMEMBERED = 1_024;
    /** The lease is not held, and was not released lately. */
    static final long STALE = -1;
    private static final long OPEN = Long.MAX_VALUE;

    private static final class Held {
        private final Lease lease;
        /** Everything below was given to the application, */
        private long delivered;
        /** was processed by it, */
        private long processed;
        /** is committed. */
        private long committed;
        /** Nothing follows this ordinal. */
        private long finishedAt = OPEN;
        /** Between these ordinals there was no record to deliver. */
        private long skippedFrom;
        private long skippedTo;
        /** Everything up to what was skipped is processed, and that is committed although nobody commits it. */
        private boolean passed;
        /** The same, but not before it is time for it: other members have the keys of most batches, perhaps. */
        private boolean passedLater;
        private boolean returning;
        /** It is released as it is committed: what was delivered of it beyond that is delivered again. */
        private boolean givenUp;
        /** A commit with release is under way. */
        private boolean releasing;
        /** A transaction that has not ended commits a position of it, perhaps another member's: nothing else does until then. */
        private boolean waits;

        Held(Lease lease) {
            this.lease = lease;
            delivered = lease.start();
            processed = lease.start();
            committed = lease.start();
            if (lease.isRange() && lease.end() <= lease.start()) {
                finishedAt = lease.end();
            }
        }

        /** Up to where can be committed: what lies between the last record and the end was never stored. */
        private long position() {
            boolean toTheEnd = finishedAt != OPEN && processed >= delivered;
            return toTheEnd ? Math.max(finishedAt, processed) : processed;
        }

        private void passSkipped() {
            if (skippedFrom <= processed && processed < skippedTo) {
                processed = skippedTo;
                passedLater = true;
                passed |= !lease.slices().areShared();
            }
        }

        /** True if nothing is left to do but the release. */
        private boolean isDone() {
            long position = position();
            return givenUp || position >= finishedAt || (returning && position >= delivered);
        }

        private LeaseCommit due(boolean all) {
            if (givenUp) {
                return releasing ? null : new LeaseCommit(lease.id(), LeaseCommit.NONE, true);
            }
            long position = position();
            boolean done = isDone();
            if (releasing || waits || (!done && (!(all || passed) || position <= committed))) {
                return null;
            }
            return new LeaseCommit(lease.id(), position > committed ? position : LeaseCommit.NONE, done);
        }

        private void committedUpTo(long next) {
            committed = Math.max(committed, next);
            passed &= processed > committed;
            passedLater &= processed > committed;
        }
    }

    private final TreeMap<Long, Held> held = new TreeMap<>();
    private final Map<Long, Long> released = new LinkedHashMap<>() {
        private static final long serialVersionUID = 1L;

        @Override
        protected boolean removeEldestEntry(Map.Entry<Long, Long> eldest) {
            return size() > REMEMBERED;
        }
    };

    void insert(Lease lease) {
        held.put(lease.id(), new Held(lease));
    }

    List<Long> ids() {
        return new ArrayList<>(held.keySet());
    }

    List<Lease> leases() {
        return held.values().stream().map(each -> each.lease).toList();
    }

    /** Leases that are still being read or processed. */
    int active() {
        return (int) held.values().stream().filter(each -> !each.isDone()).count();
    }

    /** True if anything processed is not committed, or not released although it is done. */
    boolean hasUncommitted() {
        return held.values().stream().anyMatch(each -> each.isDone() || each.position() > each.committed);
    }

    /** What is held by a grant; null if that has ended: in a group that was made anew another grant may have its number. */
    private Held heldBy(Lease lease) {
        Held one = held.get(lease.id());
        return one != null && one.lease == lease ? one : null;
    }

    /** Notes that what lies below {@code next} goes to the application. False if it may not: the lease is not read any more. */
    boolean deliver(Lease lease, long next) {
        Held one = heldBy(lease);
        if (one == null || one.returning || one.givenUp || one.releasing) {
            return false;
        }
        one.delivered = Math.max(one.delivered, next);
        if (one.lease.isRange() && next >= one.lease.end()) {
            one.finishedAt = one.lease.end();
        }
        return true;
    }

    /** Notes that there is no record between two ordinals. False if the lease is not read any more. */
    boolean skip(Lease lease, long from, long next) {
        if (!deliver(lease, next)) {
            return false;
        }
        Held one = heldBy(lease);
        one.skippedFrom = one.skippedTo == from ? one.skippedFrom : from;
        one.skippedTo = next;
        one.passSkipped();
        return true;
    }

    /** It is time to commit what was skipped of leases of some keys. */
    void commitSkipped() {
        held.values().forEach(one -> one.passed |= one.passedLater);
    }

    /** Notes that nothing of the lease is stored at or above {@code at}. */
    void finish(Lease lease, long at) {
        Held one = heldBy(lease);
        if (one != null) {
            one.finishedAt = Math.max(one.lease.isRange() ? one.lease.end() : at, one.delivered);
        }
    }

    /** Notes that everything of the lease below {@code next} is processed. False if it is not held, or is given up. */
    boolean processed(long lease, long next) {
        Held one = held.get(lease);
        if (one == null || one.givenUp) {
            return false;
        }
        if (next > one.processed) {
            one.processed = next;
            one.passSkipped();
        }
        return true;
    }

    /** Up to where a lease is committed, if it is held or was released lately; otherwise {@link #STALE}. */
    long committed(long lease) {
        Held one = held.get(lease);
        return one != null ? one.committed : released.getOrDefault(lease, STALE);
    }

    /** True until the lease has ended. */
    boolean isHeld(Lease lease) {
        return heldBy(lease) != null;
    }

    /** True if what was delivered of the lease may be committed. */
    boolean holds(Lease lease) {
        Held one = heldBy(lease);
        return one != null && !one.givenUp;
    }

    /** A transaction has committed everything of the lease below {@code next}. */
    void committedByTransaction(Lease lease, long next) {
        Held one = heldBy(lease);
        if (one == null) {
            return;
        }
        if (next > one.processed) {
            one.processed = next;
            one.passSkipped();
        }
        one.committedUpTo(next);
    }

    /** Has leases released as they are committed, without what was delivered beyond that. Those of them that are held. */
    List<Lease> giveUp(Collection<Lease> leases) {
        List<Lease> marked = new ArrayList<>();
        for (Lease lease : leases) {
            Held one = heldBy(lease);
            if (one != null && !one.givenUp && !one.releasing) {
                one.givenUp = true;
                marked.add(lease);
            }
        }
        return marked;
    }

    /** Leases of which more was delivered than is committed. */
    List<Lease> ahead() {
        return held.values().stream().filter(one -> one.delivered > one.committed).map(one -> one.lease).toList();
    }

    /** Marks leases as to be given back: no more is delivered of them. Those newly so. */
    List<Lease> giveBack(Collection<Long> leases) {
        List<Lease> marked = new ArrayList<>();
        for (long lease : leases) {
            Held one = held.get(lease);
            if (one != null && !one.returning && !one.releasing) {
                one.returning = true;
                marked.add(one.lease);
            }
        }
        return marked;
    }

    /** What to commit now, at most so many: what must be released, and with {@code all} any progress. */
    List<LeaseCommit> due(boolean all, int most) {
        List<LeaseCommit> due = new ArrayList<>();
        for (Held one : held.values()) {
            LeaseCommit commit = due.size() < most ? one.due(all) : null;
            if (commit != null) {
                one.releasing = commit.release();
                due.add(commit);
            }
        }
        return due;
    }

    /** A commit failed on its way; it may or may not have taken effect, and is sent again. */
    void commitFailed(List<LeaseCommit> commits) {
        for (LeaseCommit commit : commits) {
            Held one = held.get(commit.lease());
            if (one != null) {
                one.releasing = false;
            }
        }
    }

    /** What waits for transactions is due again: they may have ended. */
    void askAgain() {
        held.values().forEach(one -> one.waits = false);
    }

    /**
     * A commit was answered. The leases that ended by it: released ones, and those that had ended before.
     *
     * @param pending of which nothing was done: they wait until they are {@linkplain #askAgain asked for again}
     */
    List<Lease> commitDone(List<LeaseCommit> commits, Collection<Long> stale, Collection<Long> pending) {
        List<Lease> ended = new ArrayList<>();
        for (LeaseCommit commit : commits) {
            Held one = held.get(commit.lease());
            if (one == null) {
                continue;
            }
            if (stale.contains(commit.lease())) {
                held.remove(commit.lease());
                ended.add(one.lease);
                continue;
            }
            if (pending.contains(commit.lease())) {
                one.releasing = false;
                one.waits = true;
                continue;
            }
            one.committedUpTo(commit.next());
            if (commit.release()) {
                held.remove(commit.lease());
                released.put(commit.lease(), one.committed);
                ended.add(one.lease);
            }
        }
        return ended;
    }

    /** Leases that ended without our doing, of those held. What is being released may well be unknown to the coordinator by now. */
    List<Lease> lost(Collection<Long> leases) {
        List<Lease> lost = new ArrayList<>();
        for (long lease : leases) {
            Held one = held.get(lease);
            if (one != null && !one.releasing) {
                held.remove(lease);
                lost.add(one.lease);
            }
        }
        return lost;
    }

    /** All leases are gone with the membership. */
    List<Lease> lostAll() {
        List<Lease> lost = leases();
        held.clear();
        released.clear();
        return lost;
    }
}
