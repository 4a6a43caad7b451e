package io.kera.client;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Calls to the coordinators of groups whose positions a transaction commits. They may be asked again, and are, until there is an answer. */
final class PositionCalls implements AutoCloseable {
    /** Positions in one request. */
    private static final int PER_REQUEST = 1_024;

    private final CoordinatorCalls calls;

    PositionCalls(ProducerOptions options) {
        Cluster cluster = new Cluster(options.bootstrap(), options.connect());
        calls = new CoordinatorCalls(cluster, options.connect(), options.deadline().toNanos(), "group", cluster::coordinator);
    }

    /**
     * Sends positions of a group that is part of a transaction.
     *
     * @throws KeraException if the group's coordinator refuses
     * @throws IOException if there is no answer before the deadline: positions may be part of the transaction
     */
    void send(TransactionHandle transaction, GroupPositions positions) throws IOException {
        Map<Long, LeaseCommit> byLease = new TreeMap<>();
        positions.next().forEach((lease, next) -> byLease.put(lease.id(), new LeaseCommit(lease.id(), next, false)));
        List<LeaseCommit> all = List.copyOf(byLease.values());
        for (int from = 0; from < all.size(); from += PER_REQUEST) {
            List<LeaseCommit> part = all.subList(from, Math.min(all.size(), from + PER_REQUEST));
            byte[] request = GroupCalls.sendPositions(transaction, positions.group(), positions.member(), part);
            calls.call(positions.group(), Methods.SEND_POSITIONS, request);
        }
    }

    @Override
    public void close() {
        calls.close();
    }
}
