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

    /** A read to send; tell what comes of it with its number. */
    record Read(String owner, byte[] header, long lease, int number) {}

    /** A batch as it was received; null: there is none, but for the news that the lease ends, or why it cannot be read. */
    record Received(Lease lease, ByteBuffer batch, long from, long next, boolean finished, IOException error) {}

    private record Chunk(ByteBuffer body, long next, boolean finished) {}

    private static final class Source {
        private final Lease lease;
        private final ArrayDeque<Chunk> chunks = new ArrayDeque<>();
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

        Source(Lease lease, long now) {
            this.lease = lease;
            next = lease.start();
            taken = next;
            ended = reached(next);
            notBefore = now;
        }

        /** True if it may be asked for more. */
        private boolean isIdle() {
            return !asked && !ended && chunks.size() < 2;
        }

        private boolean reached(long ordinal) {
            return lease.isRange() && ordinal >= lease.end();
        }
    }

    private final byte[] stream;
    private final int memoryLimit;
    private final Map<Long, Source> sources = new HashMap<>();
    private final ArrayDeque<Source> ready = new ArrayDeque<>();
    private StreamInfo owners;
    private boolean refresh;
    private long skipped;

    LeaseReads(StreamInfo stream, int memoryLimit) {
        this.stream = stream.id();
        this.owners = stream;
        this.memoryLimit = memoryLimit;
    }

    void add(List<Lease> leases, long now) {
        leases.forEach(lease -> sources.put(lease.id(), new Source(lease, now)));
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
            reads.add(new Read(owner, request(source, bytes), source.lease.id(), source.number));
        }
        return reads;
    }

    private byte[] request(Source source, int bytes) {
        Lease lease = source.lease;
        Wire.Writer out = new Wire.Writer().bytes(1, stream).number(2, lease.streamlet()).number(3, lease.lane());
        out.bytes(4, new Wire.Writer().number(1, source.next).done()).number(5, lease.isRange() ? lease.end() : 0);
        out.number(6, bytes).number(7, 1).number(8, WAIT_MILLIS);
        if (lease.generation() != LaneReader.ALL_GENERATIONS) {
            out.present(9, lease.generation());
        }
        return out.done();
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
        if (next < source.next || (!empty && next == source.next)) {
            fail(source, new IOException("an answer about " + where(source) + " does not go forward"), now);
            return;
        }
        source.failures = 0;
        source.next = next;
        if (!empty || finished || source.reached(next)) {
            source.ended = finished || source.reached(next);
            source.chunks.add(new Chunk(frame.body(), next, source.ended));
            schedule(source);
        }
    }

    /** No answer comes to a read. */
    void lost(Read read, long now) {
        Source source = awaited(read);
        if (source != null) {
            refresh = true;
            pause(source, OWNER_PAUSE, now);
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
                source.chunks.add(new Chunk(ByteBuffer.allocate(0), to, true));
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

    /** Has what was received from an ordinal on read again, and says why. */
    IOException cannotRead(Lease lease, long from, Exception why, long now) {
        Source source = sources.get(lease.id());
        if (source != null && source.lease == lease) {
            source.chunks.clear();
            ready.remove(source);
            source.scheduled = false;
            source.asked = false;
            source.number++;
            source.ended = false;
            source.next = from;
            source.taken = from;
            source.notBefore = now + LONGEST_PAUSE;
        }
        return new IOException("a batch of streamlet " + lease.streamlet() + ", lane " + lease.lane() + " at ordinal " + from
                + " cannot be read: " + why.getMessage(), why);
    }
}
