package io.kera.client;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;

/**
 * Connections to the brokers that own lanes, one to each, for readers and cutters that one thread uses by turns: a lane
 * more costs no connection, and no login. Not thread-safe.
 */
public final class OwnerConnections implements AutoCloseable {
    private final ConnectOptions options;
    private final Map<String, Connection> connections = new HashMap<>();

    /** None yet; each is made when it is first needed. */
    public OwnerConnections(ConnectOptions options) {
        this.options = options;
    }

    /** The connection to HOST:PORT. */
    Connection to(String owner) throws IOException {
        Connection connection = connections.get(owner);
        if (connection == null) {
            connection = new Connection(owner, options);
            connections.put(owner, connection);
        }
        return connection;
    }

    /** A connection is of no use any more. */
    void forget(Connection connection) {
        connections.remove(connection.address(), connection);
        connection.closeQuietly();
    }

    /** How many there are. */
    public int count() {
        return connections.size();
    }

    @Override
    public void close() {
        connections.values().forEach(Connection::closeQuietly);
        connections.clear();
    }
}
