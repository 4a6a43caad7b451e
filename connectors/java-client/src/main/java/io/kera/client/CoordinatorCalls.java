package io.kera.client;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Calls to the brokers that coordinate groups, or transactional ids. One that may be made again is, until there is an answer, it is
 * refused for good, or the time is over.
 */
final class CoordinatorCalls implements AutoCloseable {
    private static final long FIRST_PAUSE_MILLIS = 5;
    private static final long LONGEST_PAUSE_MILLIS = 200;
    /** A coordinator may wait so long, as for the transaction before to end, or for owners of lanes. */
    private static final int WAIT_MILLIS = 5_000;
    private static final String MAY_BE_DONE = ", and what was asked for may have been done";

    /** Tells which broker coordinates a name. */
    interface Finder {
        String find(String name) throws IOException;
    }

    /** One attempt to ask. */
    private interface Attempt {
        ByteBuffer ask() throws IOException;
    }

    private final Cluster cluster;
    private final ConnectOptions options;
    private final long deadlineNanos;
    /** What has a coordinator, as in "transactional id". */
    private final String what;
    private final Finder finder;
    private final Map<String, Connection> connections = new ConcurrentHashMap<>();
    private final Map<String, String> coordinators = new HashMap<>();
    private volatile boolean closed;

    /** @param what has a coordinator, as in "transactional id" */
    CoordinatorCalls(Cluster cluster, ConnectOptions options, long deadlineNanos, String what, Finder finder) {
        this.cluster = cluster;
        this.options = options;
        this.deadlineNanos = deadlineNanos;
        this.what = what;
        this.finder = finder;
    }

    /**
     * Calls the coordinator of a name; it is the same to call it twice.
     *
     * @throws KeraException if the broker refuses
     * @throws IOException if there is no answer before the deadline: what was asked for may have been done
     */
    ByteBuffer call(String name, int method, byte[] request) throws IOException {
        return call(name, method, request, MAY_BE_DONE);
    }

    /** The same for a call that changes nothing. */
    ByteBuffer read(String name, int method, byte[] request) throws IOException {
        return call(name, method, request, "");
    }

    private synchronized ByteBuffer call(String name, int method, byte[] request, String open) throws IOException {
        return ask(coordinatorOf(name), open, () -> {
            try {
                return connection(name).call(method, request, WAIT_MILLIS);
            } catch (KeraException error) {
                if (error.code() == ErrorCodes.NOT_COORDINATOR) {
                    coordinators.remove(name);
                }
                throw error;
            } catch (LoginException error) {
                throw error;
            } catch (IOException error) {
                forget(name);
                throw error;
            }
        });
    }

    /**
     * The same for a change, of which a later attempt may be refused since an earlier one was done.
     *
     * @param done the refusal that says so; 0: none does
     * @throws KeraException if the broker refuses, and nothing was done
     * @throws IOException otherwise: what was asked for may have been done, or no coordinator was reached
     */
    synchronized ByteBuffer change(String name, int method, byte[] request, int done) throws IOException {
        String who = coordinatorOf(name);
        IOException[] open = new IOException[1];
        try {
            return ask(who, "", () -> attempt(name, method, request, open));
        } catch (KeraException refused) {
            if (open[0] == null) {
                throw refused;
            }
            if (refused.code() == done) {
                return ByteBuffer.allocate(0);
            }
            throw new IOException(who + " refuses: " + refused.getMessage() + "; an earlier attempt may have done it: "
                    + open[0].getMessage(), refused);
        } catch (IOException error) {
            throw open[0] == null ? error : new IOException(error.getMessage() + MAY_BE_DONE, error);
        }
    }

    /** On a connection of its own: one that was idle may have ended, and nobody could say what became of the change. */
    private ByteBuffer attempt(String name, int method, byte[] request, IOException[] open) throws IOException {
        try (Connection connection = new Connection(coordinator(name), options)) {
            connection.checkCalls();
            try {
                return connection.call(method, request, WAIT_MILLIS);
            } catch (KeraException error) {
                if (ErrorCodes.mayBeDone(error.code())) {
                    open[0] = error;
                }
                throw error;
            } catch (IOException error) {
                open[0] = error;
                throw error;
            }
        } catch (IOException error) {
            // Whoever it is by then.
            coordinators.remove(name);
            throw error;
        }
    }

    private String coordinatorOf(String name) {
        return "the coordinator of " + what + " " + name;
    }

    /**
     * A call that any broker answers, once all coordinators have read their state.
     *
     * @param who answers in the end, as in "one of the coordinators of transactions"
     * @throws KeraException if the broker refuses
     * @throws IOException if there is no answer before the deadline
     */
    ByteBuffer callAny(String who, int method, byte[] request) throws IOException {
        return ask(who, "", () -> cluster.call(method, request));
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
            sleep(who, pause);
            pause = Math.min(LONGEST_PAUSE_MILLIS, 2 * pause);
        }
    }

    private String coordinator(String name) throws IOException {
        String address = coordinators.get(name);
        if (address == null) {
            address = finder.find(name);
            if (coordinators.size() >= 1024) {
                coordinators.clear();
            }
            coordinators.put(name, address);
        }
        return address;
    }

    private Connection connection(String name) throws IOException {
        String address = coordinator(name);
        Connection connection = connections.get(address);
        if (connection == null) {
            connection = new Connection(address, options);
            connections.put(address, connection);
        }
        return connection;
    }

    /** The coordinator is not reached: it may be another one by now. */
    private void forget(String name) {
        String address = coordinators.remove(name);
        Connection connection = address == null ? null : connections.remove(address);
        if (connection != null) {
            connection.closeQuietly();
        }
    }

    private static void sleep(String who, long millis) throws IOException {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while waiting for " + who);
        }
    }

    @Override
    public void close() {
        // A call that is under way ends with its connection.
        closed = true;
        connections.values().forEach(Connection::closeQuietly);
        cluster.close();
    }
}
