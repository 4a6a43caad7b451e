package io.kera.client;

import java.util.List;

/** Records of a lane that follow each other, as a {@link Consumer} delivers them. */
public final class ConsumedBatch {
    private final Lease lease;
    private final String member;
    private final long next;
    private final List<KeraRecord> records;

    ConsumedBatch(Lease lease, String member, long next, List<KeraRecord> records) {
        this.lease = lease;
        this.member = member;
        this.next = next;
        this.records = records;
    }

    /** The lease under which they are read; it names the lane. */
    public Lease lease() {
        return lease;
    }

    /** The ordinal behind them: a commit of this batch says that everything of the lease below it is processed. */
    public long next() {
        return next;
    }

    /** The records, in the order of their ordinals; there is at least one. */
    public List<KeraRecord> records() {
        return records;
    }

    /** Who held the lease. Its number may mean another one to whoever it is now. */
    String member() {
        return member;
    }
}
