package io.kera.client;

import io.kera.client.LeaseReads.Read;
import io.kera.client.LeaseReads.Received;
import io.kera.client.Membership.Call;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/**
 * A member of a consumer group: delivers the records of the lanes, or ranges of lanes, that it holds leases for.
 *
 * <p>Joining, heartbeats, leases and commits happen in the background; after a lost connection or a change of owners it
 * goes on where it was. Every record is delivered to the group at least once: again, if its lease ended before it was
 * committed. What is written in transactions counts once, if they commit the consumer's {@link #positions}. One thread calls
 * {@link #next}; others may commit.
 */
public final class Consumer implements AutoCloseable {
    /** How long {@link #close} waits for commits, and a new consumer for its group. */
    private static final long PATIENCE = TimeUnit.SECONDS.toNanos(30);
    /** A coordinator that cannot be found within this is looked for again: a session must not end meanwhile. */
    private static final int FIND_MILLIS = 3_000;
    /** In place of an address: whichever broker is asked who the coordinator is. */
    private static final String ANY = "";

    private final String group;
    private final StreamInfo stream;
    private final ConsumerOptions options;
    private final GroupCalls calls;
    private final MetadataWatch metadata;
    private final Cluster cluster;
    private final Map<String, FrameLink> links = new HashMap<>();
    private final Thread driver;
    /** Guards what follows; told of what applications wait for. Who holds it holds the member up. */
    final Object lock = new Object();
    private final Membership membership;
    private final LeaseReads reads;
    private final LoginRefusals refusals;
    private final StillTrying coordinatorCalls;
    private ConsumedBatch previous;
    private IOException failure;
    private boolean closed;
    private volatile boolean stopped;
    /** Of the driver's thread: the link to the group's coordinator; null: it is to be looked for. */
    private FrameLink coordinator;
    /** A link whose broker did not answer, or is not the coordinator. */
    private volatile FrameLink unreached;

    /**
     * Joins a group, and waits until it is a member.
     *
     * @throws KeraException if the stream does not exist, or the group is another stream's, or has another order
     * @throws LoginException if a broker does not let the client in
     * @throws IOException if no broker answers
     */
    public Consumer(String stream, String group, ConsumerOptions options) throws IOException {
        this(stream, group, options, LoginRefusals.PATIENCE);
    }

    Consumer(String stream, String group, ConsumerOptions options, long refusedNanos) throws IOException {
        this.group = group;
        refusals = new LoginRefusals(refusedNanos);
        coordinatorCalls = new StillTrying("the coordinator of group " + group);
        this.options = options;
        ConnectOptions soon = options.connect();
        cluster = new Cluster(options.bootstrap(), soon.withTimeoutMillis(Math.min(FIND_MILLIS, soon.timeoutMillis())));
        Cluster owners = new Cluster(options.bootstrap(), options.connect());
        try {
            this.stream = owners.stream(stream);
        } catch (IOException | RuntimeException error) {
            owners.close();
            throw error;
        }
        calls = new GroupCalls(group, this.stream, options);
        membership = new Membership(options.maxLeases(), options.commitInterval().toNanos(), System.nanoTime());
        reads = new LeaseReads(this.stream, options);
        metadata = new MetadataWatch(stream, owners, "kera-consumer-" + group + "-owners", this::wake);
        driver = new Thread(this::run, "kera-consumer-" + group);
        driver.setDaemon(true);
        driver.start();
        try {
            awaitMembership();
        } catch (IOException error) {
            stop();
            throw error;
        }
    }

    private void awaitMembership() throws IOException {
        long deadline = System.nanoTime() + PATIENCE;
        synchronized (lock) {
            while (!membership.isJoined()) {
                check();
                if (!await(deadline)) {
                    throw new IOException("the coordinator of group " + group + " did not answer within 30 s; see that "
                            + "the brokers can be reached");
                }
            }
        }
    }

    /**
     * The next records; null if none come within {@code wait}. Unless the commit interval is zero the call tells that
     * all records delivered before are processed.
     *
     * @throws LoginException if brokers have refused to let the client in again for 10 s: the consumer has ended
     * @throws KeraException with {@link ErrorCodes#NOT_AUTHORIZED} if the user may not see the stream any more: the consumer has ended
     * @throws IOException that names a lane: of that lane alone; call again to go on. Otherwise the consumer has ended,
     *     for instance since its stream was deleted.
     */
    public ConsumedBatch next(Duration wait) throws IOException {
        long deadline = System.nanoTime() + wait.toNanos();
        synchronized (lock) {
            passOnProgress();
        }
        while (true) {
            Received received;
            synchronized (lock) {
                check();
                received = reads.take(System.nanoTime());
                if (received == null) {
                    if (!await(deadline)) {
                        return null;
                    }
                    continue;
                }
            }
            ConsumedBatch batch = deliver(received);
            if (batch != null) {
                return batch;
            }
        }
    }

    private ConsumedBatch deliver(Received received) throws IOException {
        if (received.error() != null) {
            throw received.error();
        }
        Lease lease = received.lease();
        List<KeraRecord> records = new ArrayList<>();
        IOException damaged = null;
        if (received.batch() != null) {
            try {
                Batches.decode(received.batch(), record -> {
                    boolean isWithin = record.ordinal() >= received.from() && record.ordinal() < received.next();
                    if (isWithin && lease.slices().contains(record.key(), record.ordinal())) {
                        records.add(record);
                    }
                });
            } catch (IOException | RuntimeException error) {
                damaged = new IOException(error);
            }
        }
        synchronized (lock) {
            if (damaged != null) {
                IOException error = reads.cannotRead(lease, received.from(), (Exception) damaged.getCause(), System.nanoTime());
                wake();
                if (error == null) {
                    return null;
                }
                throw error;
            }
            LeaseTable leases = membership.leases();
            if (received.batch() == null) {
                if (lease.slices().areShared() && received.next() > received.from()) {
                    leases.skip(lease, received.from(), received.next());
                }
                if (received.finished()) {
                    leases.finish(lease, received.next());
                }
                wake();
                return null;
            }
            if (records.isEmpty()) {
                leases.skip(lease, received.from(), received.next());
                return null;
            }
            // Otherwise another member has them.
            if (!leases.deliver(lease, received.next())) {
                return null;
            }
            previous = new ConsumedBatch(lease, membership.member(), received.next(), records);
            return previous;
        }
    }

    private void passOnProgress() {
        if (previous != null && !options.commitInterval().isZero() && previous.member().equals(membership.member())) {
            // Its lease may have ended meanwhile; then another member has the records.
            membership.leases().processed(previous.lease().id(), previous.next());
            // It may have been the last of its lease.
            wake();
        }
        previous = null;
    }

    /**
     * Notes that everything of the batch's lease up to and with it is processed. It is committed at the next interval,
     * with the next {@link #commit}, and when the lease ends.
     *
     * @throws KeraException with {@link ErrorCodes#STALE_LEASE} if the lease has ended
     */
    public void mark(ConsumedBatch batch) throws IOException {
        synchronized (lock) {
            check();
            process(batch);
        }
        wake();
    }

    private void process(ConsumedBatch batch) throws KeraException {
        boolean same = batch.member().equals(membership.member());
        LeaseTable leases = membership.leases();
        if (!same || (!leases.processed(batch.lease().id(), batch.next()) && leases.committed(batch.lease().id()) < batch.next())) {
            throw stale(batch);
        }
    }

    private KeraException stale(ConsumedBatch batch) {
        return new KeraException(ErrorCodes.STALE_LEASE, "lease " + batch.lease().id() + " of group " + group
                + " has ended: its records go, or went, to another member");
    }

    /**
     * Commits everything of the batch's lease up to and with it, and returns when that is durable.
     *
     * @throws KeraException with {@link ErrorCodes#STALE_LEASE} if the lease has ended: its records go, or went, to another
     *     member; with {@link ErrorCodes#TIMEOUT} if there was no answer within 30 s: the commit is sent on and may yet
     *     take effect
     */
    public void commit(ConsumedBatch batch) throws IOException {
        long deadline = System.nanoTime() + PATIENCE;
        synchronized (lock) {
            check();
            process(batch);
            membership.wantCommit();
            wake();
            while (true) {
                long committed = batch.member().equals(membership.member())
                        ? membership.leases().committed(batch.lease().id()) : LeaseTable.STALE;
                if (committed >= batch.next()) {
                    return;
                }
                // One that is given up is released after all commits that are under way: then it is known how far it came.
                if (committed == LeaseTable.STALE || !membership.leases().isHeld(batch.lease())) {
                    throw stale(batch);
                }
                check();
                if (!await(deadline)) {
                    throw new KeraException(ErrorCodes.TIMEOUT, "a commit of group " + group + " was not answered within 30 s; "
                            + "it is sent on: see that the brokers can be reached, and commit again to hear of it");
                }
            }
        }
    }

    /**
     * Where the group stands after these batches, and everything of their leases before them: for a transaction to commit together
     * with what became of their records, see {@link Producer#sendPositions}. Automatic commits must be off
     * ({@link ConsumerOptions#withCommitInterval} zero).
     *
     * <p>If the transaction is not committed for certain, or is prepared, the leases are given back: their records are delivered again
     * from where the group stands, here or elsewhere, once that is known. What was delivered beyond these batches is delivered again as
     * well; to commit it is refused.
     *
     * @throws KeraException with {@link ErrorCodes#STALE_LEASE} if a lease has ended: its records go, or went, to another member, or are
     *     delivered again; abort the transaction
     * @throws IllegalStateException with automatic commits
     */
    public GroupPositions positions(Collection<ConsumedBatch> batches) throws IOException {
        if (!options.commitInterval().isZero()) {
            throw new IllegalStateException("the consumer of group " + group + " commits every " + options.commitInterval()
                    + ", which would move the group without the transaction: turn that off by withCommitInterval(Duration.ZERO)");
        }
        Map<Lease, Long> next = new HashMap<>();
        synchronized (lock) {
            check();
            for (ConsumedBatch batch : batches) {
                if (!holds(batch)) {
                    throw stale(batch);
                }
                next.merge(batch.lease(), batch.next(), Math::max);
            }
            return new GroupPositions(group, membership.member(), next, this::ended);
        }
    }

    private boolean holds(ConsumedBatch batch) {
        return batch.member().equals(membership.member()) && membership.leases().holds(batch.lease());
    }

    /** The transaction that commits positions is over. */
    private void ended(GroupPositions positions, boolean isCommitted) {
        tell(() -> membership.transactionEnded(positions.next(), isCommitted));
    }

    /**
     * Has everything delivered again that is not committed, here or elsewhere: for whoever gives up a transaction before it has sent the
     * positions of what it was made from. Batches that were delivered before cannot be committed any more.
     */
    public void rewind() {
        synchronized (lock) {
            previous = null;
            membership.rewind();
        }
        wake();
    }

    /** The leases that are held now. */
    public List<Lease> leases() {
        synchronized (lock) {
            return membership.leases().leases();
        }
    }

    /** Ordinals that were gone before they were read, by retention or a trim. */
    public long skipped() {
        synchronized (lock) {
            return reads.skipped();
        }
    }

    /**
     * How many records of the leases that are held now can be read and are not delivered yet, as far as brokers have told; with
     * {@link ConsumerOptions.Order#KEY} also those whose keys others have. Of the whole group it is {@link Admin#group}.
     */
    public long lag() {
        synchronized (lock) {
            return reads.behind();
        }
    }

    /** Bytes of batches that were read from replicas in the consumer's rack. */
    public long replicaBytes() {
        synchronized (lock) {
            return reads.replicaBytes();
        }
    }

    private void check() throws IOException {
        if (closed) {
            throw new IOException("the consumer is closed");
        }
        if (failure == null && membership.failure() != null) {
            failure = membership.failure();
        }
        if (failure instanceof KeraException || failure instanceof LoginException) {
            throw failure;
        }
        if (failure != null) {
            throw new IOException(failure.getMessage(), failure);
        }
    }

    /** Waits for news; false once the deadline has passed. */
    private boolean await(long deadline) throws IOException {
        long left = deadline - System.nanoTime();
        if (left <= 0) {
            return false;
        }
        try {
            TimeUnit.NANOSECONDS.timedWait(lock, Math.max(left, 1_000_000));
            return true;
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while waiting for group " + group);
        }
    }

    private void wake() {
        LockSupport.unpark(driver);
    }

    private void run() {
        while (!stopped) {
            long now = System.nanoTime();
            List<Call> toCall;
            List<Read> toRead;
            long due;
            synchronized (lock) {
                follow(metadata.take());
                toCall = membership.due(now);
                reads.remove(membership.takeEnded());
                reads.add(membership.takeGranted(), now);
                toRead = reads.due(now);
                if (reads.takeRefresh()) {
                    metadata.want();
                }
                long call = membership.nextDue(now);
                long read = reads.nextDue(now);
                due = call - read < 0 ? call : read;
                lock.notifyAll();
            }
            toRead.forEach(this::send);
            send(toCall);
            links.values().forEach(link -> link.watch(now));
            if (coordinator != null) {
                coordinator.watch(now);
            }
            long pause = due - System.nanoTime();
            if (pause > 0) {
                LockSupport.parkNanos(this, pause);
            }
        }
        links.values().forEach(FrameLink::close);
        if (coordinator != null) {
            coordinator.close();
        }
        cluster.close();
    }

    private void follow(StreamInfo told) {
        if (metadata.gone() != null) {
            failure = metadata.gone();
        } else if (metadata.hidden() != null) {
            failure = metadata.hidden();
        } else if (told != null && !java.util.Arrays.equals(told.id(), stream.id())) {
            failure = new IOException("stream " + stream.name() + " was deleted, and another one has its name");
        } else if (told != null) {
            reads.owners(told);
        }
    }

    private void send(Read read) {
        FrameLink link = links.computeIfAbsent(
                read.broker(), broker -> new FrameLink(broker, options.connect(), "kera-consumer-" + group));
        long patience = TimeUnit.MILLISECONDS.toNanos(read.waitMillis() + (long) options.connect().timeoutMillis());
        link.ask(read.kind(), read.header(), read.body(), System.nanoTime() + patience, new FrameLink.Waiter() {
            @Override
            public void answered(FrameChannel.Frame frame) {
                tell(() -> {
                    refusals.reached(read.broker());
                    reads.answered(read, frame, System.nanoTime());
                });
            }

            @Override
            public void lost(IOException why) {
                tell(() -> {
                    notReached(read.broker(), why);
                    reads.lost(read, System.nanoTime());
                });
            }
        });
    }

    private void send(List<Call> toCall) {
        if (toCall.isEmpty()) {
            return;
        }
        if (coordinator != null && coordinator == unreached) {
            coordinator.close();
            coordinator = null;
        }
        if (coordinator == null) {
            try {
                coordinator = new FrameLink(cluster.coordinator(group), options.connect(), "kera-consumer-" + group + "-calls");
                synchronized (lock) {
                    refusals.reached(ANY);
                }
            } catch (IOException error) {
                KeraException refused = error instanceof KeraException told ? told : null;
                tell(() -> {
                    notReached(ANY, error);
                    coordinatorCalls.failed(error, System.nanoTime());
                    toCall.forEach(call -> membership.failed(call, refused, System.nanoTime()));
                });
                return;
            }
        }
        FrameLink link = coordinator;
        for (Call call : toCall) {
            link.call(GroupCalls.method(call.kind()), calls.request(call), call.kind().withinMillis, new FrameLink.Waiter() {
                @Override
                public void answered(FrameChannel.Frame frame) {
                    KeraException refused = FrameChannel.refusal(frame.header());
                    if (refused != null && refused.code() == ErrorCodes.NOT_COORDINATOR) {
                        unreached = link;
                    }
                    tell(() -> {
                        refusals.reached(link.address());
                        if (refused != null && ErrorCodes.isRetryable(refused.code())) {
                            coordinatorCalls.failed(refused, System.nanoTime());
                        } else {
                            coordinatorCalls.answered();
                        }
                        if (refused == null) {
                            calls.answered(membership, call, frame.body(), System.nanoTime());
                        } else {
                            membership.failed(call, refused, System.nanoTime());
                        }
                    });
                }

                @Override
                public void lost(IOException why) {
                    unreached = link;
                    tell(() -> {
                        notReached(link.address(), why);
                        coordinatorCalls.failed(why, System.nanoTime());
                        membership.failed(call, null, System.nanoTime());
                    });
                }
            });
        }
    }

    /** Called with the lock. */
    private void notReached(String address, IOException why) {
        if (refusals.areFinal(address, why, System.nanoTime())) {
            failure = why;
            // The driver ends: nobody is asked again.
            stopped = true;
        }
    }

    /** Applications that wait hear of it too. */
    private void tell(Runnable news) {
        synchronized (lock) {
            news.run();
            lock.notifyAll();
        }
        wake();
    }

    /**
     * Commits what was processed (unless the commit interval is zero: all that was delivered), gives the leases back, and
     * leaves the group.
     *
     * @throws IOException if that did not get through; the consumer is closed all the same, and its leases end with its
     *     session
     */
    @Override
    public void close() throws IOException {
        synchronized (lock) {
            if (closed) {
                return;
            }
            passOnProgress();
            membership.close();
        }
        wake();
        long deadline = System.nanoTime() + PATIENCE;
        try {
            synchronized (lock) {
                while (!membership.hasLeft()) {
                    check();
                    if (!await(deadline)) {
                        throw new IOException("the commits of group " + group + " were not answered within 30 s; what did not "
                                + "take effect is delivered again, to the group's next member");
                    }
                }
                if (membership.hasLost()) {
                    throw new IOException("group " + group + " did not know this member any more: what was processed and not"
                            + " committed is delivered again, to the group's next member");
                }
            }
        } finally {
            synchronized (lock) {
                closed = true;
                lock.notifyAll();
            }
            stop();
        }
    }

    /** Ends the member's threads. Its group is not told. */
    void stop() {
        stopped = true;
        wake();
        metadata.close();
    }
}
