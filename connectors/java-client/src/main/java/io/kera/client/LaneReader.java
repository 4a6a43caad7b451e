package io.kera.client;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** Reads one lane from an ordinal on, to its end or for ever. */
public final class LaneReader implements AutoCloseable {
    /** No end. */
    public static final long UNBOUNDED = -1;
    /** Every generation of the stream's lanes. */
    public static final int ALL_GENERATIONS = -1;
    private static final long MOST_RECORDS = (1L << 32) - 1;

    private static final byte[] NO_BODY = {};

    /** What an answer of the owner that is late is for. */
    private enum Purpose {
        READ,
        /** Which replicas there are. */
        LOOK,
        /** Whether an ordinal is of the generation that is read. */
        PROVE
    }

    private final OwnerConnections connections;
    /** The connections are this reader's alone. */
    private final boolean owned;
    private final String owner;
    private final String name;
    private final byte[] stream;
    private final int streamlet;
    private final int lane;
    private final long end;
    private final int generation;
    private long next;
    private long head;
    private boolean finished;
    /** What the owner was asked for and has not answered in time; null: nothing. */
    private Connection.Asked asked;
    private Purpose purpose;
    /** Null: all is read from the owner. */
    private final NearReplicas replicas;
    private long replicaBytes;

    /**
     * A reader of the ordinals from {@code start} on, below {@code end}.
     *
     * @param options how to connect; a broker has to answer within its timeout after any wait
     */
    public LaneReader(StreamInfo stream, int streamlet, int lane, long start, long end, ConnectOptions options)
            throws IOException {
        this(stream, streamlet, lane, start, end, ALL_GENERATIONS, options);
    }

    /**
     * The same, that also ends where a generation of the stream's lanes ends in the lane.
     *
     * @param generation its number
     */
    public LaneReader(
            StreamInfo stream, int streamlet, int lane, long start, long end, int generation, ConnectOptions options)
            throws IOException {
        this(stream, streamlet, lane, start, end, generation, new OwnerConnections(options), true);
    }

    /**
     * The same over connections that readers share, which stay open. One thread reads by all of them.
     *
     * @param generation its number, or {@link #ALL_GENERATIONS}
     */
    public LaneReader(
            StreamInfo stream, int streamlet, int lane, long start, long end, int generation, OwnerConnections connections)
            throws IOException {
        this(stream, streamlet, lane, start, end, generation, connections, false);
    }

    private LaneReader(
            StreamInfo stream, int streamlet, int lane, long start, long end, int generation, OwnerConnections connections,
            boolean owned) throws IOException {
        this.connections = connections;
        this.owned = owned;
        this.generation = generation;
        this.name = stream.name();
        this.stream = stream.id();
        this.replicas = connections.rack().isEmpty() ? null : new NearReplicas(connections.rack());
        this.streamlet = streamlet;
        this.lane = lane;
        this.next = start;
        this.head = start;
        this.end = end;
        // On the wire an end of 0 means none.
        this.finished = end != UNBOUNDED && end <= start;
        owner = stream.owner(streamlet);
        if (owner.isEmpty()) {
            throw new IOException("no broker serves streamlet " + streamlet + " of stream " + stream.name() + "; look it up again");
        }
        connections.to(owner);
    }

    /**
     * The first record at or after a time, of a lane as {@link Admin#boundsFrom} found it: its head if there is none.
     *
     * @param timestamp milliseconds since 1970
     * @param connections which readers share, and which stay open
     */
    public static long firstFrom(StreamInfo stream, Admin.LaneBounds lane, long timestamp, OwnerConnections connections)
            throws IOException {
        try (LaneReader reader = new LaneReader(
                stream, lane.streamlet(), lane.lane(), lane.start(), lane.head(), ALL_GENERATIONS, connections)) {
            while (!reader.finished()) {
                long before = reader.position();
                // One batch at a time: the first one has the record, but for what was aborted.
                for (KeraRecord record : reader.read(1, 0)) {
                    if (record.timestamp() >= timestamp) {
                        return record.ordinal();
                    }
                }
                if (!reader.finished() && reader.position() == before) {
                    throw new IOException("lane " + lane.streamlet() + "/" + lane.lane() + " has no records at " + before);
                }
            }
            return lane.head();
        }
    }

    /** True once everything below the end was read. */
    public boolean finished() {
        return finished;
    }

    /** The ordinal at which another reader goes on. */
    public long position() {
        return next;
    }

    /** How many bytes of batches were read from replicas, in place of the owner. */
    public long replicaBytes() {
        return replicaBytes;
    }

    /**
     * How many records could be read when the last answer came, behind {@link #position} and below the end.
     */
    public long behind() {
        return behind(next, end == UNBOUNDED ? head : Math.min(head, end));
    }

    /**
     * Records between two ordinals. Where a broker may have lost records, ordinals jump by 2^32 to numbers that nobody has
     * seen; such a jump counts nothing.
     */
    public static long behind(long position, long head) {
        long ordinals = Math.max(0, head - position) & MOST_RECORDS;
        // What a reader has seen and the broker lost makes the jump a little shorter for it.
        return ordinals > MOST_RECORDS / 2 ? 0 : ordinals;
    }

    /**
     * The next records; none if there are none after such a wait, or at the end.
     *
     * @throws SilentBrokerException if the broker has not answered yet, over connections with a patience
     */
    public List<KeraRecord> read(int maxBytes, int waitMillis) throws IOException {
        if (finished) {
            return new ArrayList<>();
        }
        List<KeraRecord> near = replicas == null ? null : readNear(maxBytes);
        return near != null ? near : take(askOwner(Purpose.READ, request(maxBytes, waitMillis), NO_BODY, waitMillis), true);
    }

    /** @param isOwner whether what it says of the lane's end counts */
    private List<KeraRecord> take(FrameChannel.Frame reply, boolean isOwner) throws IOException {
        int error = 0;
        String message = "";
        long then = next;
        long told = head;
        boolean ended = false;
        Wire.Reader fields = new Wire.Reader(reply.header());
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> error = (int) fields.varint();
                case 2 -> message = fields.text();
                case 3 -> then = ordinal(fields.part());
                case 4 -> told = fields.varint();
                case 7 -> ended = fields.varint() != 0;
                default -> fields.skip();
            }
        }
        if (error != 0) {
            throw new KeraException(error, message);
        }
        List<KeraRecord> records = new ArrayList<>();
        long from = next;
        // A read begins at the batch that holds the ordinal, and ends at a whole batch.
        Batches.read(reply.body(), record -> {
            if (record.ordinal() >= from && (end == UNBOUNDED || record.ordinal() < end)) {
                records.add(record);
            }
        });
        // A replica knows closed groups alone.
        head = isOwner ? told : Math.max(head, told);
        next = end == UNBOUNDED ? then : Math.min(then, end);
        finished = isOwner && ended || (end != UNBOUNDED && next >= end);
        return records;
    }

    /** The next records of a replica in the rack; null: the owner is to be asked. */
    private List<KeraRecord> readNear(int maxBytes) throws IOException {
        if (asked != null && !asked.isOf(connections.existing(owner))) {
            asked = null;
        }
        if (asked != null && purpose == Purpose.READ) {
            return null;
        }
        NearReplicas.Range range = replicas.at(next);
        if (range == null && (asked != null || replicas.toProve() >= 0
                || replicas.isDue(next, behind() > 0, System.nanoTime()))) {
            look();
            range = replicas.at(next);
        }
        String holder = range == null ? null : replicas.holder(range, System.nanoTime());
        return holder == null ? null : readNear(maxBytes, range, holder);
    }

    private List<KeraRecord> readNear(int maxBytes, NearReplicas.Range range, String holder) throws IOException {
        Connection connection = null;
        try {
            connection = connections.to(holder);
            Connection.Asked read = connection.begin(FrameChannel.READ, copyRequest(maxBytes, range), NO_BODY, 0);
            FrameChannel.Frame reply = connection.answer(read, connections.patienceMillis());
            if (reply == null) {
                throw new IOException(connection.silent(read), new SocketTimeoutException());
            }
            long before = next;
            int bytes = reply.body().remaining();
            List<KeraRecord> records = take(reply, false);
            if (next > before) {
                replicaBytes += bytes;
                return records;
            }
            replicas.refused(range, holder);
        } catch (LoginException error) {
            throw error;
        } catch (KeraException error) {
            // The owner knows more in every case.
            replicas.refused(range, holder);
        } catch (IOException error) {
            replicas.away(holder, System.nanoTime());
            if (connection != null) {
                connections.forget(connection, error);
            }
        }
        return null;
    }

    /** Asks the owner which replicas there are, and up to where they are of the generation that is read. */
    private void look() throws IOException {
        try {
            if (asked == null ? replicas.toProve() < 0 : purpose == Purpose.LOOK) {
                byte[] call = new Wire.Writer().number(1, Methods.FIND_COPIES).number(2, connections.timeoutMillis()).done();
                byte[] request = NearReplicas.request(name, streamlet, lane, next);
                FrameChannel.Frame reply = askOwner(Purpose.LOOK, FrameChannel.CALL, call, request, 0);
                if (FrameChannel.refusal(reply.header()) != null) {
                    replicas.none(System.nanoTime());
                    return;
                }
                replicas.found(reply.body(), owner, generation != ALL_GENERATIONS, System.nanoTime());
            }
            while (replicas.toProve() >= 0) {
                byte[] probe = readRequest(replicas.toProve(), replicas.toProve() + 1, 1, 0).present(9, generation).done();
                FrameChannel.Frame reply = askOwner(Purpose.PROVE, probe, NO_BODY, 0);
                // Behind the generation's end the owner gives nothing. A broker that was the owner knows no end behind which it has records.
                replicas.proved(FrameChannel.refusal(reply.header()) == null && reply.body().hasRemaining());
            }
        } catch (SilentBrokerException error) {
            throw error;
        } catch (IOException error) {
            replicas.none(System.nanoTime());
            throw error;
        }
    }

    private FrameChannel.Frame askOwner(Purpose what, byte[] header, byte[] body, int waitMillis) throws IOException {
        return askOwner(what, FrameChannel.READ, header, body, waitMillis);
    }

    private FrameChannel.Frame askOwner(Purpose what, int kind, byte[] header, byte[] body, int waitMillis) throws IOException {
        Connection connection = connections.to(owner);
        try {
            boolean isLate = asked != null && asked.isOf(connection);
            if (!isLate) {
                asked = connection.begin(kind, header, body, waitMillis);
                purpose = what;
            }
            FrameChannel.Frame reply = connection.answer(asked, isLate ? 0 : connections.patienceMillis() + waitMillis);
            if (reply == null) {
                throw new SilentBrokerException(connection.silent(asked));
            }
            asked = null;
            return reply;
        } catch (SilentBrokerException error) {
            throw error;
        } catch (IOException error) {
            asked = null;
            connections.forget(connection, error);
            throw error;
        }
    }

    private byte[] request(int maxBytes, int waitMillis) {
        Wire.Writer request = readRequest(next, end == UNBOUNDED ? 0 : end, maxBytes, waitMillis);
        if (generation != ALL_GENERATIONS) {
            request.present(9, generation);
        }
        return request.done();
    }

    private byte[] copyRequest(int maxBytes, NearReplicas.Range range) {
        long until = end == UNBOUNDED ? range.end() : Math.min(range.end(), end);
        return readRequest(next, until, maxBytes, 0).number(10, 1).done();
    }

    private Wire.Writer readRequest(long from, long until, int maxBytes, int waitMillis) {
        byte[] cursor = new Wire.Writer().number(1, from).done();
        Wire.Writer request = new Wire.Writer().bytes(1, stream).number(2, streamlet).number(3, lane);
        request.bytes(4, cursor).number(5, until).number(6, maxBytes);
        return request.number(7, 1).number(8, waitMillis);
    }

    static long ordinal(ByteBuffer cursor) {
        long ordinal = 0;
        Wire.Reader fields = new Wire.Reader(cursor);
        for (int field; (field = fields.next()) != 0; ) {
            if (field == 1) {
                ordinal = fields.varint();
            } else {
                fields.skip();
            }
        }
        return ordinal;
    }

    @Override
    public void close() {
        if (owned) {
            connections.close();
        }
    }
}
