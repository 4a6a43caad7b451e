package io.kera.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;

/** Calls to the coordinators of transactional ids. All may be asked again, and are, until there is an answer. */
final class TransactionCalls implements AutoCloseable {
    private final CoordinatorCalls calls;

    TransactionCalls(List<String> bootstrap, ConnectOptions options, long deadlineNanos) {
        Cluster cluster = new Cluster(bootstrap, options);
        calls = new CoordinatorCalls(cluster, options, deadlineNanos, "transactional id", cluster::transactionCoordinator);
    }

    /**
     * Calls the coordinator of a transactional id.
     *
     * @throws KeraException if the broker refuses
     * @throws IOException if there is no answer before the deadline: what was asked for may have been done
     */
    ByteBuffer call(String id, int method, byte[] request) throws IOException {
        return calls.call(id, method, request);
    }

    /**
     * A call that any broker answers, once all coordinators have read their state.
     *
     * @throws KeraException if the broker refuses
     * @throws IOException if there is no answer before the deadline
     */
    ByteBuffer callAny(int method, byte[] request) throws IOException {
        return calls.callAny("one of the coordinators of transactions", method, request);
    }

    /**
     * How a producer begins.
     *
     * @param heartbeatMillis how often a heartbeat is expected while a transaction is open; 0: none is
     */
    record Begun(Cluster.ProducerId identity, long heartbeatMillis) {}

    /**
     * Producer id and epoch of a transactional id; {@code known} are those that the producer had, or null.
     *
     * @param sendsHeartbeats whether the timeout is to run from the last heartbeat
     */
    Begun init(String id, long timeoutMillis, Cluster.ProducerId known, boolean sendsHeartbeats) throws IOException {
        Wire.Writer request = new Wire.Writer().text(1, id).number(2, timeoutMillis);
        if (known != null) {
            request.present(3, known.id()).number(4, known.epoch());
        }
        request.number(5, sendsHeartbeats ? 1 : 0);
        long[] numbers = new long[4];
        Wire.Reader fields = new Wire.Reader(call(id, Methods.INIT_TRANSACTIONS, request.done()));
        for (int field; (field = fields.next()) != 0; ) {
            if (field < numbers.length) {
                numbers[field] = fields.varint();
            } else {
                fields.skip();
            }
        }
        return new Begun(new Cluster.ProducerId(numbers[1], (short) numbers[2]), numbers[3]);
    }

    /** Tells that the producer of an open transaction lives. */
    void heartbeat(String id, Cluster.ProducerId identity) throws IOException {
        Wire.Writer request = new Wire.Writer().text(1, id).number(2, identity.id()).number(3, identity.epoch());
        call(id, Methods.HEARTBEAT_TRANSACTION, request.done());
    }

    /** Whether the transaction was committed, whatever was asked for. */
    boolean end(TransactionHandle handle, boolean commit) throws IOException {
        byte[] request = new Wire.Writer().bytes(1, handle.encoded()).number(2, commit ? 1 : 0).done();
        boolean committed = false;
        Wire.Reader fields = new Wire.Reader(call(handle.transactionalId(), Methods.END_TRANSACTION, request));
        for (int field; (field = fields.next()) != 0; ) {
            if (field == 1) {
                committed = fields.varint() != 0;
            } else {
                fields.skip();
            }
        }
        return committed;
    }

    /**
     * Adds lanes of a stream and groups to the transaction that is open, or begins one; which of the id's it is.
     *
     * @param lanes of a LanesOfTransaction; null: none
     */
    long add(String id, Cluster.ProducerId identity, byte[] lanes, List<String> groups) throws IOException {
        Wire.Writer request = new Wire.Writer().text(1, id).number(2, identity.id()).number(3, identity.epoch());
        if (lanes != null) {
            request.bytes(4, lanes);
        }
        groups.forEach(group -> request.text(5, group));
        long given = 0;
        Wire.Reader fields = new Wire.Reader(call(id, Methods.ADD_TO_TRANSACTION, request.done()));
        for (int field; (field = fields.next()) != 0; ) {
            if (field == 1) {
                given = fields.varint();
            } else {
                fields.skip();
            }
        }
        return given;
    }

    void named(int method, TransactionHandle handle) throws IOException {
        call(handle.transactionalId(), method, new Wire.Writer().bytes(1, handle.encoded()).done());
    }

    @Override
    public void close() {
        calls.close();
    }
}
