package io.kera.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/** Calls that any broker answers: the next one is asked where one does not. */
final class Cluster implements AutoCloseable {
    private final ConnectOptions options;
    private final Set<String> addresses;
    private Connection connection;

    Cluster(List<String> bootstrap, ConnectOptions options) {
        this.addresses = new LinkedHashSet<>(bootstrap);
        this.options = options;
    }

    /**
     * The reply of the first broker that answers. A call that changes something is made once: where its answer is lost
     * it may have been done.
     *
     * @throws KeraException if it refuses
     * @throws LoginException if a broker does not let the client in; no other is asked, since all have the same users
     * @throws IOException if none answers
     */
    synchronized ByteBuffer call(int method, byte[] request) throws IOException {
        IOException failed = null;
        List<String> order = new ArrayList<>(addresses);
        if (connection != null) {
            // The one that answered last comes first; it may have closed the connection meanwhile.
            order.add(0, connection.address());
        }
        for (String address : order) {
            boolean sent = false;
            try {
                // A connection that was idle may have ended: of a change that is sent on it nobody could say whether it
                // was done.
                if (connection == null || !connection.address().equals(address) || Methods.changes(method)) {
                    close();
                    connection = new Connection(address, options);
                    connection.checkCalls();
                }
                sent = true;
                return connection.call(method, request);
            } catch (KeraException error) {
                if (!ErrorCodes.isRetryable(error.code())) {
                    throw error;
                }
                if (Methods.changes(method) && ErrorCodes.mayBeDone(error.code())) {
                    close();
                    throw new IOException("broker " + address + " has answered " + error.getMessage()
                            + "; what was asked for may have been done", error);
                }
                if (error.code() == ErrorCodes.SHUTTING_DOWN) {
                    // The broker is about to end this connection, as when what it was proved by is over: not the broker.
                    close();
                }
                failed = keep(failed, error);
            } catch (LoginException error) {
                close();
                throw error;
            } catch (IOException error) {
                close();
                failed = keep(failed, error);
                if (sent && Methods.changes(method)) {
                    failed = new IOException("the answer of broker " + address
                            + " was lost, and what was asked for may have been done: " + error.getMessage(), error);
                    break;
                }
            }
        }
        throw failed;
    }

    private static IOException keep(IOException first, IOException next) {
        if (first == null) {
            return next;
        }
        first.addSuppressed(next);
        return first;
    }

    /** Looks a stream up. Its owners may be asked later too. */
    synchronized StreamInfo stream(String name) throws IOException {
        StreamInfo stream = StreamInfo.read(call(Methods.GET_STREAM, Admin.named(name)));
        for (StreamInfo.Streamlet streamlet : stream.streamlets()) {
            if (!streamlet.owner().isEmpty()) {
                addresses.add(streamlet.owner());
            }
        }
        return stream;
    }

    /**
     * As {@link #stream}; where a broker does not know the stream each of the others is asked once: one that was just started, or is
     * cut off, may not have heard of a stream that others serve.
     */
    synchronized StreamInfo streamOfAny(String name) throws IOException {
        try {
            return stream(name);
        } catch (KeraException unknown) {
            if (unknown.code() != ErrorCodes.UNKNOWN_STREAM) {
                throw unknown;
            }
            String by = connection == null ? "" : connection.address();
            for (String address : List.copyOf(addresses)) {
                if (!address.equals(by) && turnTo(address)) {
                    try {
                        return stream(name);
                    } catch (IOException error) {
                        // It does not know it either, or cannot tell.
                    }
                }
            }
            throw unknown;
        }
    }

    /** Has that broker be asked first from now on; false if it is not reached. */
    private boolean turnTo(String address) {
        try {
            Connection other = new Connection(address, options);
            close();
            connection = other;
            connection.checkCalls();
            return true;
        } catch (IOException error) {
            return false;
        }
    }

    /** The address of the broker that has a group's leases and commits. */
    String coordinator(String group) throws IOException {
        return coordinator(Admin.named(group));
    }

    /** The address of the broker that has a transactional id's transactions. */
    String transactionCoordinator(String id) throws IOException {
        return coordinator(new Wire.Writer().text(2, id).done());
    }

    private synchronized String coordinator(byte[] request) throws IOException {
        Wire.Reader fields = new Wire.Reader(call(Methods.FIND_COORDINATOR, request));
        String address = "";
        for (int field; (field = fields.next()) != 0; ) {
            if (field == 2) {
                address = fields.text();
            } else {
                fields.skip();
            }
        }
        // Without one it is the broker that answered.
        return address.isEmpty() ? connection.address() : address;
    }

    /** A producer's id, and its epoch. */
    ProducerId newProducer(String stream) throws IOException {
        long id = 0;
        short epoch = 0;
        Wire.Reader fields = new Wire.Reader(call(Methods.INIT_PRODUCER, Admin.named(stream)));
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> id = fields.varint();
                case 2 -> epoch = (short) fields.varint();
                default -> fields.skip();
            }
        }
        return new ProducerId(id, epoch);
    }

    record ProducerId(long id, short epoch) {}

    @Override
    public synchronized void close() {
        if (connection != null) {
            connection.closeQuietly();
            connection = null;
        }
    }
}
