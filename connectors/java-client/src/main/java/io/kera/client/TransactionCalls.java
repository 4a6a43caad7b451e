package io.kera.client;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** Calls to the coordinators of transactional ids. All may be asked again, and are, until there is an answer. */
final class TransactionCalls implements AutoCloseable {
    private static final long FIRST_PAUSE_MILLIS = 5;
    private static final long LONGEST_PAUSE_MILLIS = 200;
    /** A coordinator may wait so long for the transaction before to end. */
    private static final int WAIT_MILLIS = 5_000;

    private final Cluster cluster;
    private final ConnectOptions options;
    private final long deadlineNanos;
    private final Map<String, Connection> connections = new ConcurrentHashMap<>();
    private final Map<String, String> coordinators = new HashMap<>();
    private volatile boolean closed;

    TransactionCalls(List<String> bootstrap, ConnectOptions options, long deadlineNanos) {
        this.cluster = new Cluster(bootstrap, options);
        this.options = options;
        this.deadlineNanos = deadlineNanos;
    }

    /** One attempt to ask. */
    private interface Attempt {
        ByteBuffer ask() throws IOException;
    }

    /**
     * Calls the coordinator of a transactional id.
     *
     * @throws KeraException if the broker refuses
     * @throws IOException if there is no answer before the deadline: what was asked for may have been done
     */
    synchronized ByteBuffer call(String id, int method, byte[] request) throws IOException {
        String who = "the coordinator of transactional id " + id;
        return ask(who, ", and what was asked for may have been done", () -> {
            try {
                return connection(id).call(method, request, WAIT_MILLIS);
            } catch (KeraException error) {
                if (error.code() == ErrorCodes.NOT_COORDINATOR) {
                    coordinators.remove(id);
                }
                throw error;
            } catch (LoginException error) {
                throw error;
            } catch (IOException error) {
                forget(id);
                throw error;
            }
        });
    }

    /**
     * A call that any broker answers, once all coordinators have read their state.
     *
     * @throws KeraException if the broker refuses
     * @throws IOException if there is no answer before the deadline
     */
    ByteBuffer callAny(int method, byte[] request) throws IOException {
        return ask("one of the coordinators of transactions", "", () -> cluster.call(method, request));
    }

    /** Asks until there is an answer, the request is refused for good, or the time is over. */
    private ByteBuffer ask(String who, String open, Attempt attempt) throws IOException {
        long until = System.nanoTime() + deadlineNanos;
        long pause = FIRST_PAUSE_MILLIS;
        StillTrying trying = new StillTrying(who);
        while (true) {
            IOException failed;
            try {
                return attempt.ask();
            } catch (KeraException error) {
                if (!ErrorCodes.isRetryable(error.code())) {
                    throw error;
                }
                failed = error;
            } catch (LoginException error) {
                throw error;
            } catch (IOException error) {
                failed = error;
            }
            if (closed || System.nanoTime() - until > 0) {
                throw new IOException(who + " did not answer in time" + open + "; ask again: " + failed.getMessage(), failed);
            }
            trying.failed(failed, System.nanoTime());
            sleep(pause);
            pause = Math.min(LONGEST_PAUSE_MILLIS, 2 * pause);
        }
    }

    private Connection connection(String id) throws IOException {
        String address = coordinators.get(id);
        if (address == null) {
            address = cluster.transactionCoordinator(id);
            if (coordinators.size() >= 1024) {
                coordinators.clear();
            }
            coordinators.put(id, address);
        }
        Connection connection = connections.get(address);
        if (connection == null) {
            connection = new Connection(address, options);
            connections.put(address, connection);
        }
        return connection;
    }

    /** The coordinator is not reached: it may be another one by now. */
    private void forget(String id) {
        String address = coordinators.remove(id);
        Connection connection = address == null ? null : connections.remove(address);
        if (connection != null) {
            connection.closeQuietly();
        }
    }

    private static void sleep(long millis) throws IOException {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while waiting for a coordinator of transactions");
        }
    }

    /** Producer id and epoch of a transactional id; {@code known} are those that the producer had, or null. */
    Cluster.ProducerId init(String id, long timeoutMillis, Cluster.ProducerId known) throws IOException {
        Wire.Writer request = new Wire.Writer().text(1, id).number(2, timeoutMillis);
        if (known != null) {
            request.present(3, known.id()).number(4, known.epoch());
        }
        long[] numbers = new long[3];
        Wire.Reader fields = new Wire.Reader(call(id, Methods.INIT_TRANSACTIONS, request.done()));
        for (int field; (field = fields.next()) != 0; ) {
            if (field < numbers.length) {
                numbers[field] = fields.varint();
            } else {
                fields.skip();
            }
        }
        return new Cluster.ProducerId(numbers[1], (short) numbers[2]);
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

    void named(int method, TransactionHandle handle) throws IOException {
        call(handle.transactionalId(), method, new Wire.Writer().bytes(1, handle.encoded()).done());
    }

    @Override
    public void close() {
        // A call that is under way ends with its connection.
        closed = true;
        connections.values().forEach(Connection::closeQuietly);
        cluster.close();
    }
}
