package io.kera.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * What is read of the leases that a consumer holds: one request and one answer ahead of each. A state machine without
 * I/O; it is told the time by {@link System#nanoTime}. Not thread-safe.
 */
final class LeaseReads {
    /** How long a read waits at the broker for records. */
    static final int WAIT_MILLIS = 5_000;

    private static final int LARGEST_READ = 256 << 10;
    private static final long FIRST_PAUSE = TimeUnit.MILLISECONDS.toNanos(20);
    /** A new owner serves as soon as it can, and readers wait meanwhile. */
    private static final long OWNER_PAUSE = TimeUnit.MILLISECONDS.toNanos(250);
    private static final long LONGEST_PAUSE = TimeUnit.SECONDS.toNanos(1);
    /** An owner may hear of a stream later than whoever named the owner. */
    private static final int UNHEARD_ATTEMPTS = 5;

    private static final byte[] NO_BODY = {};

    /** What a request is for. */
    private enum Purpose {
        READ,
        /** Which replicas there are. */
        LOOK,
        /** Whether an ordinal is of the generation that is read. */
        PROVE,
        /** A read of a replica in the member's rack. */
        NEAR
    }

    /**
     * A request to send; tell what comes of it with its number.
     *
     * @param broker who is asked
     * @param waitMillis how long the broker may wait before it answers
     */
    record Read(String broker, int kind, byte[] header, byte[] body, int waitMillis, long lease, int number) {}

    /** A batch as it was received; null: there is none, but for the news that the lease ends, or why it cannot be read. */
    record Received(Lease lease, ByteBuffer batch, long from, long next, boolean finished, IOException error) {}

    /** @param replica that it was read from; null: the owner */
    private record Chunk(ByteBuffer body, long next, boolean finished, Replica replica) {}

    private record Replica(NearReplicas.Range range, String holder) {}

    private record LaneKey(int streamlet, int lane) {}

    private static final class Source {
        private final Lease lease;
        private final ArrayDeque<Chunk> chunks = new ArrayDeque<>();
        /** Null: all is read from owners. */
        private final NearReplicas replicas;
        /** Behind the last record that the broker has told of. */
        private long head;
        private Purpose purpose = Purpose.READ;
        /** Which is asked. */
        private Replica replica;
        /** Where the next read begins, */
        private long next;
        /** and up to where what was received is taken. */
        private long taken;
        private boolean asked;
        private boolean ended;
        private boolean scheduled;
        private int number;
        private int failures;
        private long notBefore;
        private IOException error;

        Source(Lease lease, NearReplicas replicas, long now) {
            this.lease = lease;
            this.replicas = replicas;
            next = lease.start();
            // A range is cut of what is stored.
            head = lease.isRange() ? lease.end() : next;
            taken = next;
            ended = reached(next);
            notBefore = now;
        }

        /** True if it may be asked for more. */
        private boolean isIdle() {
            return !asked && !ended && chunks.size() < 2;
        }

        /** Records behind an ordinal that can be read. */
        private long behind(long ordinal) {
            return LaneReader.behind(ordinal, lease.isRange() ? Math.min(head, lease.end()) : head);
        }

        private boolean reached(long ordinal) {
            return lease.isRange() && ordinal >= lease.end();
        }
    }

    private final String name;
    private final byte[] stream;
    private final int memoryLimit;
    private final String rack;
    private final int callMillis;
    /** Of leases of ranges, which are short. */
    private final Map<LaneKey, NearReplicas> shared = new HashMap<>();
    private long replicaBytes;
    private final Map<Long, Source> sources = new HashMap<>();
    private final ArrayDeque<Source> ready = new ArrayDeque<>();
    private StreamInfo owners;
    private boolean refresh;
    private long skipped;

    LeaseReads(StreamInfo stream, ConsumerOptions options) {
        name = stream.name();
        this.stream = stream.id();
        this.owners = stream;
        memoryLimit = options.memoryLimit();
        rack = options.rack();
        callMillis = options.connect().timeoutMillis();
    }

    void add(List<Lease> leases, long now) {
        leases.forEach(lease -> sources.put(lease.id(), new Source(lease, replicas(lease), now)));
    }

    private NearReplicas replicas(Lease lease) {
        if (rack.isEmpty()) {
            return null;
        }
        return lease.isRange() && lease.generation() == LaneReader.ALL_GENERATIONS
                ? shared.computeIfAbsent(new LaneKey(lease.streamlet(), lease.lane()), any -> new NearReplicas(rack))
                : new NearReplicas(rack);
    }

    void remove(Collection<Lease> leases) {
        for (Lease lease : leases) {
            ready.remove(sources.remove(lease.id()));
        }
    }

    /** Who owns the streamlets now. */
    void owners(StreamInfo info) {
        owners = info;
    }

    /** True, once, if the owners are to be looked up. */
    boolean takeRefresh() {
        boolean wanted = refresh;
        refresh = false;
        return wanted;
    }

    /** Records that were gone before they were read, by retention or a trim; counted as ordinals. */
    long skipped() {
        return skipped;
    }

    /** Records that can be read of the leases, as far as brokers have told, and were not taken. */
    long behind() {
        return sources.values().stream().mapToLong(source -> source.behind(source.taken)).sum();
    }

    /** Bytes of batches that came from replicas in the rack. */
    long replicaBytes() {
        return replicaBytes;
    }

    /** The reads to send now. */
    List<Read> due(long now) {
        List<Read> reads = new ArrayList<>();
        int bytes = Math.max(1, Math.min(LARGEST_READ, memoryLimit / Math.max(1, 2 * sources.size())));
        for (Source source : sources.values()) {
            if (!source.isIdle() || source.notBefore - now > 0) {
                continue;
            }
            String owner = owners.owner(source.lease.streamlet());
            if (owner.isEmpty()) {
                refresh = true;
                source.notBefore = now + OWNER_PAUSE;
                continue;
            }
            source.asked = true;
            source.number++;
            reads.add(source.replicas == null ? ofOwner(source, owner, bytes) : next(source, owner, bytes, now));
        }
        return reads;
    }

    private Read ofOwner(Source source, String owner, int bytes) {
        source.purpose = Purpose.READ;
        Wire.Writer out = request(source, source.next, source.lease.isRange() ? source.lease.end() : 0, bytes);
        return read(source, owner, ofGeneration(source, out.number(8, WAIT_MILLIS)), WAIT_MILLIS);
    }

    /** Of a replica in the rack if there is one, which the owner is asked first. */
    private Read next(Source source, String owner, int bytes, long now) {
        NearReplicas replicas = source.replicas;
        Lease lease = source.lease;
        long toProve = replicas.toProve();
        if (toProve >= 0) {
            source.purpose = Purpose.PROVE;
            return read(source, owner, ofGeneration(source, request(source, toProve, toProve + 1, 1)), 0);
        }
        NearReplicas.Range range = replicas.at(source.next);
        if (range == null && replicas.isDue(source.next, source.behind(source.next) > 0, now)) {
            source.purpose = Purpose.LOOK;
            // Who shares them asks the owner meanwhile.
            replicas.none(now);
            byte[] call = new Wire.Writer().number(1, Methods.FIND_COPIES).number(2, callMillis).done();
            byte[] body = NearReplicas.request(name, lease.streamlet(), lease.lane(), source.next);
            return new Read(owner, FrameChannel.CALL, call, body, 0, lease.id(), source.number);
        }
        String holder = range == null ? null : replicas.holder(range, now);
        if (holder == null) {
            return ofOwner(source, owner, bytes);
        }
        source.purpose = Purpose.NEAR;
        source.replica = new Replica(range, holder);
        long until = lease.isRange() ? Math.min(range.end(), lease.end()) : range.end();
        return read(source, holder, request(source, source.next, until, bytes).number(10, 1), 0);
    }

    private static Read read(Source source, String broker, Wire.Writer request, int waitMillis) {
        return new Read(broker, FrameChannel.READ, request.done(), NO_BODY, waitMillis, source.lease.id(), source.number);
    }

    private Wire.Writer request(Source source, long from, long until, int bytes) {
        Wire.Writer out = new Wire.Writer().bytes(1, stream).number(2, source.lease.streamlet()).number(3, source.lease.lane());
        out.bytes(4, new Wire.Writer().number(1, from).done()).number(5, until);
        return out.number(6, bytes).number(7, 1);
    }

    private static Wire.Writer ofGeneration(Source source, Wire.Writer request) {
        int generation = source.lease.generation();
        return generation == LaneReader.ALL_GENERATIONS ? request : request.present(9, generation);
    }

    /** When {@link #due} may have something without anything else happening. */
    long nextDue(long now) {
        long next = now + LONGEST_PAUSE;
        for (Source source : sources.values()) {
            if (source.isIdle() && source.notBefore - next < 0) {
                next = source.notBefore;
            }
        }
        return next;
    }

    private Source awaited(Read read) {
        Source source = sources.get(read.lease());
        if (source == null || !source.asked || source.number != read.number()) {
            return null;
        }
        source.asked = false;
        return source;
    }

    /** A read was answered. */
    void answered(Read read, FrameChannel.Frame frame, long now) {
        Source source = awaited(read);
        if (source == null) {
            return;
        }
        switch (source.purpose) {
            case READ -> wasRead(source, frame, now);
            case NEAR -> wasReadNear(source, frame);
            case LOOK -> {
                if (FrameChannel.refusal(frame.header()) == null) {
                    boolean ofGeneration = source.lease.generation() != LaneReader.ALL_GENERATIONS;
                    source.replicas.found(frame.body(), read.broker(), ofGeneration, now);
                }
            }
            // Behind the generation's end the owner gives nothing.
            case PROVE -> source.replicas.proved(
                    FrameChannel.refusal(frame.header()) == null && frame.body().hasRemaining());
        }
    }

    private void wasRead(Source source, FrameChannel.Frame frame, long now) {
        int error = 0;
        String message = "";
        long next = source.next;
        long logStart = 0;
        boolean finished = false;
        Wire.Reader fields = new Wire.Reader(frame.header());
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> error = (int) fields.varint();
                case 2 -> message = fields.text();
                case 3 -> next = LaneReader.ordinal(fields.part());
                case 4 -> source.head = fields.varint();
                case 5 -> logStart = fields.varint();
                case 7 -> finished = fields.varint() != 0;
                default -> fields.skip();
            }
        }
        if (error != 0) {
            refused(source, new KeraException(error, message), logStart, now);
            return;
        }
        boolean empty = !frame.body().hasRemaining();
        // Without records of its own to come, a lease of some keys goes on by what is passed over.
        boolean passes = next > source.next && source.lease.slices().areShared();
        if (next < source.next || (!empty && next == source.next)) {
            fail(source, new IOException("an answer about " + where(source) + " does not go forward"), now);
            return;
        }
        source.failures = 0;
        source.next = next;
        if (!empty || passes || finished || source.reached(next)) {
            source.ended = finished || source.reached(next);
            source.chunks.add(new Chunk(frame.body(), next, source.ended, null));
            schedule(source);
        }
    }

    /** What a replica says of the lane's end does not count: it knows closed groups alone. */
    private void wasReadNear(Source source, FrameChannel.Frame frame) {
        long next = source.next;
        Wire.Reader fields = new Wire.Reader(frame.header().duplicate());
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 3 -> next = LaneReader.ordinal(fields.part());
                case 4 -> source.head = Math.max(source.head, fields.varint());
                default -> fields.skip();
            }
        }
        if (FrameChannel.refusal(frame.header()) != null || next <= source.next) {
            // The owner knows more in every case.
            refusedBy(source, source.replica);
            return;
        }
        source.failures = 0;
        source.next = next;
        source.ended = source.reached(next);
        replicaBytes += frame.body().remaining();
        source.chunks.add(new Chunk(frame.body(), next, source.ended, source.replica));
        schedule(source);
    }

    private static void refusedBy(Source source, Replica replica) {
        source.replicas.refused(replica.range(), replica.holder());
    }

    /** No answer comes to a read. */
    void lost(Read read, long now) {
        Source source = awaited(read);
        if (source != null && source.purpose == Purpose.NEAR) {
            source.replicas.away(source.replica.holder(), now);
        } else if (source != null) {
            refresh = true;
            pause(source, OWNER_PAUSE, now);
            if (source.purpose == Purpose.PROVE) {
                source.replicas.none(now);
            }
        }
    }

    private void refused(Source source, KeraException error, long logStart, long now) {
        int code = error.code();
        if (code == ErrorCodes.OUT_OF_RANGE && logStart > source.next) {
            long to = source.lease.isRange() ? Math.min(logStart, source.lease.end()) : logStart;
            skipped += to - source.next;
            source.next = to;
            if (source.reached(to)) {
                source.ended = true;
                source.chunks.add(new Chunk(ByteBuffer.allocate(0), to, true, null));
                schedule(source);
            }
            return;
        }
        boolean elsewhere = ErrorCodes.asksForOwner(code)
                || code == ErrorCodes.UNKNOWN_STREAMLET || code == ErrorCodes.UNKNOWN_LANE;
        refresh |= elsewhere;
        if (ErrorCodes.isRetryable(code) || (elsewhere && source.failures < UNHEARD_ATTEMPTS)) {
            pause(source, elsewhere ? OWNER_PAUSE : LONGEST_PAUSE, now);
        } else {
            fail(source, new IOException("reading " + where(source) + " failed: " + error.getMessage(), error), now);
        }
    }

    private static void pause(Source source, long longest, long now) {
        source.notBefore = now + Math.min(FIRST_PAUSE << Math.min(source.failures, 10), longest);
        source.failures++;
    }

    /** The application hears of it, and after a pause it is tried again. */
    private void fail(Source source, IOException error, long now) {
        source.failures++;
        source.notBefore = now + LONGEST_PAUSE;
        source.error = error;
        schedule(source);
    }

    private static String where(Source source) {
        return "streamlet " + source.lease.streamlet() + ", lane " + source.lease.lane() + " at ordinal " + source.next;
    }

    private void schedule(Source source) {
        if (!source.scheduled) {
            source.scheduled = true;
            ready.add(source);
        }
    }

    /** Something that was received, of one lease after the other; null: there is nothing. */
    Received take(long now) {
        Source source = ready.poll();
        if (source == null) {
            return null;
        }
        source.scheduled = false;
        long from = source.taken;
        Chunk chunk = source.chunks.peek();
        if (chunk == null) {
            IOException error = source.error;
            source.error = null;
            return new Received(source.lease, null, from, from, false, error);
        }
        if (!chunk.body().hasRemaining()) {
            source.chunks.remove();
            if (!source.chunks.isEmpty() || source.error != null) {
                schedule(source);
            }
            source.taken = Math.max(from, chunk.next());
            return new Received(source.lease, null, from, source.taken, chunk.finished(), null);
        }
        schedule(source);
        try {
            ByteBuffer batch = Batches.take(chunk.body());
            long behind = Batches.behind(batch);
            source.taken = Math.max(from, source.reached(behind) ? source.lease.end() : behind);
            return new Received(source.lease, batch, from, source.taken, false, null);
        } catch (IOException | RuntimeException error) {
            return new Received(source.lease, null, from, from, false, cannotRead(source.lease, from, error, now));
        }
    }

    /**
     * Has what was received from an ordinal on read again, and says why; null if it came from a replica: the owner is asked then, and nobody
     * needs to hear of it.
     */
    IOException cannotRead(Lease lease, long from, Exception why, long now) {
        Source source = sources.get(lease.id());
        if (source != null && source.lease == lease) {
            Chunk chunk = source.chunks.peek();
            source.chunks.clear();
            ready.remove(source);
            source.scheduled = false;
            source.asked = false;
            source.number++;
            source.ended = false;
            source.next = from;
            source.taken = from;
            source.notBefore = now + LONGEST_PAUSE;
            if (chunk != null && chunk.replica() != null) {
                refusedBy(source, chunk.replica());
                source.notBefore = now;
                return null;
            }
        }
        return new IOException("a batch of streamlet " + lease.streamlet() + ", lane " + lease.lane() + " at ordinal " + from
                + " cannot be read: " + why.getMessage(), why);
    }
}
