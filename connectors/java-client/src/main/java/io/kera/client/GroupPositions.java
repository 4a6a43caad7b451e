package io.kera.client;

import java.util.Map;
import java.util.function.BiConsumer;

/**
 * Where a consumer group stands, for a transaction to commit: made by {@link Consumer#positions}, and taken by
 * {@link Producer#sendPositions}, which tells the consumer how the transaction ended.
 */
public final class GroupPositions {
    private final String group;
    private final String member;
    private final Map<Lease, Long> next;
    private final BiConsumer<GroupPositions, Boolean> told;

    /**
     * @param member whose leases they are of
     * @param next by lease: everything below is part of the transaction
     * @param told is called once the transaction is over, with whether it is committed for certain
     */
    GroupPositions(String group, String member, Map<Lease, Long> next, BiConsumer<GroupPositions, Boolean> told) {
        this.group = group;
        this.member = member;
        this.next = Map.copyOf(next);
        this.told = told;
    }

    /** The group. */
    public String group() {
        return group;
    }

    String member() {
        return member;
    }

    Map<Lease, Long> next() {
        return next;
    }

    /** The transaction is over: committed for certain, or not. */
    void ended(boolean isCommitted) {
        told.accept(this, isCommitted);
    }

    @Override
    public String toString() {
        return "positions of group " + group + " in " + next.size() + " leases of member " + member;
    }
}
