package io.kera.client;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.SocketTimeoutException;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Connections to the brokers that own lanes, or have replicas of them, one to each, for readers and cutters that one thread uses by turns: a lane
 * more costs no connection, and no login. Not thread-safe.
 */
public final class OwnerConnections implements AutoCloseable {
    /** A broker that was not reached is tried again after so long. */
    private static final long PAUSE_NANOS = Duration.ofMillis(50).toNanos();

    private final ConnectOptions options;
    /** How long one broker may hold up the others; null: as long as the timeout. */
    private final Duration patience;
    /** The rack that readers are in; empty: none. */
    private final String rack;
    private final Map<String, Connection> connections = new HashMap<>();
    private final Map<String, CompletableFuture<Connection>> attempts = new HashMap<>();
    private final Map<String, Unreached> unreached = new HashMap<>();

    /** Why a broker was not reached, and until when, by {@link System#nanoTime}, it is not tried again. */
    private record Unreached(IOException why, long until) {}

    /** None yet; each is made when it is first needed. */
    public OwnerConnections(ConnectOptions options) {
        this(options, null);
    }

    /**
     * The same for a thread that reads from several brokers: one that does not answer holds it up for {@code patience} and not
     * for the timeout. What is asked of that broker fails at once from then on, until it answers.
     */
    public OwnerConnections(ConnectOptions options, Duration patience) {
        this(options, patience, "");
    }

    /**
     * The same for readers in a rack, as brokers name theirs ({@code cluster.rack}): what is in closed groups is read from a
     * replica in the same rack where there is one, unless the owner is in it too. Replicas of a group are there once it is closed.
     *
     * @param patience null: none
     * @param rack empty: none
     */
    public OwnerConnections(ConnectOptions options, Duration patience, String rack) {
        this.options = options;
        this.patience = patience;
        this.rack = rack;
    }

    String rack() {
        return rack;
    }

    int timeoutMillis() {
        return options.timeoutMillis();
    }

    /** The connection that there is; null: none. */
    Connection existing(String owner) {
        return connections.get(owner);
    }

    /** The connection to HOST:PORT. */
    Connection to(String owner) throws IOException {
        Connection connection = connections.get(owner);
        if (connection == null) {
            connection = patience == null ? new Connection(owner, options) : reached(owner);
            connections.put(owner, connection);
        }
        return connection;
    }

    /** What another thread connects: otherwise each lane of the broker would take the timeout from all other lanes. */
    private Connection reached(String owner) throws IOException {
        Unreached before = unreached.get(owner);
        CompletableFuture<Connection> attempt = attempts.get(owner);
        boolean waits = attempt == null && before == null;
        if (attempt == null) {
            if (before != null && before.until() - System.nanoTime() > 0) {
                throw again(before.why());
            }
            attempt = begin(owner);
            attempts.put(owner, attempt);
        }
        try {
            Connection connection = attempt.get(waits ? patience.toNanos() : 0, TimeUnit.NANOSECONDS);
            attempts.remove(owner);
            unreached.remove(owner);
            return connection;
        } catch (TimeoutException error) {
            throw before != null ? again(before.why()) : new IOException("broker " + owner + " cannot be reached: it does not answer");
        } catch (ExecutionException error) {
            attempts.remove(owner);
            IOException why = error.getCause() instanceof IOException cause ? cause : new IOException(error.getCause());
            unreached.put(owner, new Unreached(why, System.nanoTime() + PAUSE_NANOS));
            throw again(why);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while connecting to broker " + owner);
        }
    }

    private CompletableFuture<Connection> begin(String owner) {
        CompletableFuture<Connection> attempt = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try {
                attempt.complete(new Connection(owner, options));
            } catch (IOException | RuntimeException error) {
                attempt.completeExceptionally(error);
            }
        }, "kera-connect-" + owner);
        thread.setDaemon(true);
        thread.start();
        return attempt;
    }

    private static IOException again(IOException why) {
        return why instanceof LoginException ? why : new IOException(why.getMessage(), why);
    }

    /** How long a reader waits for an answer, milliseconds; the timeout where one broker may hold up the others. */
    int patienceMillis() {
        return patience == null ? options.timeoutMillis() : (int) Math.min(patience.toMillis(), options.timeoutMillis());
    }

    /** A connection is of no use any more. */
    void forget(Connection connection, IOException why) {
        connections.remove(connection.address(), connection);
        connection.closeQuietly();
        if (patience != null && why.getCause() instanceof SocketTimeoutException) {
            // As long as that took: otherwise each lane of the broker would take that time from all others.
            long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(options.timeoutMillis());
            unreached.put(connection.address(), new Unreached(why, until));
        }
    }

    /** How many there are. */
    public int count() {
        return connections.size();
    }

    @Override
    public void close() {
        connections.values().forEach(Connection::closeQuietly);
        connections.clear();
        attempts.values().forEach(attempt -> attempt.thenAccept(Connection::closeQuietly));
        attempts.clear();
    }
}
