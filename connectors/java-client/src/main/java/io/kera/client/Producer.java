package io.kera.client;

import io.kera.client.ProducerLane.Split;
import io.kera.client.ProducerLink.Attempt;
import io.kera.client.SealedBatch.Tracked;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Appends records to a stream: in order within a lane, and each once, also where answers are lost.
 *
 * <p>{@link #append} encodes a record straight into its lane's batch and returns. {@link #flush} waits for
 * acknowledgements. Batches are sent again after errors that may pass, until their deadline. May be used by several
 * threads.
 */
public final class Producer implements AutoCloseable {
    private static final int ANY_PARTITION = -1;

    private final ProducerOptions options;
    private final ProducerDriver driver;
    private final MemoryBudget memory;
    private final Outstanding outstanding = new Outstanding();
    private final byte[] streamId;
    private final boolean byKey;
    /** Each record names its partition. */
    private final boolean placed;
    private final int batchBytes;
    private final int recordBytes;
    private volatile Split split;
    private volatile int sticky;
    private volatile boolean closed;
    private final AtomicBoolean closing = new AtomicBoolean();
    private final CountDownLatch ended = new CountDownLatch(1);
    /** Set while a thread runs what applications hang on the futures of records. */
    private final ThreadLocal<Boolean> telling = ThreadLocal.withInitial(() -> false);

    /**
     * Looks the stream up, and gets an id for the producer.
     *
     * @throws KeraException if the stream does not exist, or may not be written to
     * @throws LoginException if a broker does not let the client in
     * @throws IOException if no broker answers
     */
    public Producer(String stream, ProducerOptions options) throws IOException {
        this(stream, options, false);
    }

    /**
     * One whose records name their partitions, whatever their keys: see {@link #appendTo}.
     *
     * @throws IllegalArgumentException if owners choose the stream's lanes
     */
    public static Producer placed(String stream, ProducerOptions options) throws IOException {
        return new Producer(stream, options, true);
    }

    private Producer(String stream, ProducerOptions options, boolean placed) throws IOException {
        this.options = options;
        this.placed = placed;
        memory = new MemoryBudget(options.memoryLimit());
        Cluster cluster = new Cluster(options.bootstrap(), options.connect());
        try {
            StreamInfo info = cluster.stream(stream);
            streamId = info.id();
            byKey = info.byKey();
            if (placed && !byKey) {
                throw new IllegalArgumentException("the lanes of stream " + stream
                        + " are chosen by their owners: its records cannot name them; create the stream with --lane-by key");
            }
            recordBytes = info.maxBatchBytes() == 0 ? options.batchSize() : info.maxBatchBytes();
            batchBytes = Math.min(options.batchSize(), recordBytes);
            driver = new ProducerDriver(this, stream, info, cluster, options);
        } catch (IOException | RuntimeException error) {
            cluster.close();
            throw error;
        }
        split = driver.firstSplit();
        driver.start();
    }

    /** Appends a record with the time of now. Key and value may be null. */
    public void append(byte[] key, byte[] value) throws IOException {
        append(key, value, List.of(), System.currentTimeMillis());
    }

    /**
     * Appends a record.
     *
     * @param timestamp milliseconds since 1970
     * @throws IOException if memory is short until the deadline, the record is larger than the stream takes, or its
     *     lane has failed. That a batch is given up later is told by {@link #flush}.
     */
    public void append(byte[] key, byte[] value, List<KeraRecord.Header> headers, long timestamp) throws IOException {
        add(ANY_PARTITION, key, value, headers, timestamp, null);
    }

    /**
     * Appends a record to a partition, of a producer that was made by {@link #placed}: partition p of a stream of M streamlets is lane p / M
     * of streamlet p % M. It stays there while lanes grow.
     *
     * @param partition less than {@link #partitions}
     * @param timestamp milliseconds since 1970
     * @throws IOException as {@link #append}
     */
    public void appendTo(int partition, byte[] key, byte[] value, List<KeraRecord.Header> headers, long timestamp)
            throws IOException {
        if (!placed) {
            throw new IllegalStateException("the producer chooses lanes by key: make it by Producer.placed");
        }
        if (partition < 0 || partition >= partitions()) {
            throw new IllegalArgumentException("partition " + partition + " is none: there are " + partitions());
        }
        add(partition, key, value, headers, timestamp, null);
    }

    /** How many lanes there are in all, as far as the producer knows: they may have grown. */
    public int partitions() {
        return split.partitions();
    }

    /**
     * Appends a record whose place is wanted; it fails with a {@link ProduceException}. Callbacks of the future run on a thread of the
     * producer, and may not wait for it: {@link #flush}, {@link #close} and the ends of transactions refuse there.
     */
    public CompletableFuture<RecordPlace> appendTracked(
            byte[] key, byte[] value, List<KeraRecord.Header> headers, long timestamp) throws IOException {
        CompletableFuture<RecordPlace> place = new CompletableFuture<>();
        add(ANY_PARTITION, key, value, headers, timestamp, place);
        return place;
    }

    private void add(int partition, byte[] key, byte[] value, List<KeraRecord.Header> headers, long timestamp,
            CompletableFuture<RecordPlace> place) throws IOException {
        if (placed != (partition != ANY_PARTITION)) {
            throw new IllegalStateException("each record of this producer names its partition: use appendTo");
        }
        int bound = BatchBuilder.bound(key, value, headers);
        if (BatchBuilder.HEADER + bound > recordBytes) {
            throw new KeraException(ErrorCodes.BATCH_TOO_LARGE, "a record of up to " + bound
                    + " bytes does not fit a batch of the stream, which has at most " + recordBytes);
        }
        long deadline = 0;
        while (true) {
            Split now = split;
            ProducerLane lane = lane(now, partition, key);
            int missing;
            boolean retired;
            synchronized (lane) {
                retired = lane.split != now;
                missing = retired ? 0 : tryAdd(lane, key == null && !placed, bound, key, value, headers, timestamp, place);
            }
            if (retired) {
                driver.awaitSplit();
            } else if (missing == 0) {
                return;
            } else {
                notInCallback("waiting for memory");
                deadline = deadline == 0 ? System.nanoTime() + options.deadline().toNanos() : deadline;
                sealAll();
                memory.await(missing, deadline);
            }
        }
    }

    private ProducerLane lane(Split now, int partition, byte[] key) {
        if (placed) {
            return now.lanes()[partition];
        }
        return key != null && byKey ? now.lanes()[Partitions.of(key, now.lanes().length)] : keyless(now);
    }

    /** Adds the record, or tells how many bytes of memory are missing. Called with the lane's lock. */
    private int tryAdd(ProducerLane lane, boolean keyless, int bound, byte[] key, byte[] value,
            List<KeraRecord.Header> headers, long timestamp, CompletableFuture<RecordPlace> place) throws IOException {
        if (closed) {
            throw new IOException("the producer is closed");
        }
        if (driver.transaction() != null && !driver.transaction().takesRecords()) {
            throw new IllegalStateException("no transaction of the producer is open: begin one");
        }
        if (lane.queue.failed() != null) {
            throw lane.queue.failed();
        }
        if (lane.open() != null && lane.open().length() + bound > batchBytes) {
            seal(lane);
        }
        BatchBuilder open = lane.open();
        if (open == null) {
            int whole = Math.max(batchBytes, BatchBuilder.HEADER + bound);
            // Without keys one batch is open at a time, and about to be filled.
            int capacity = keyless ? whole : Math.min(whole, Math.max(4 << 10, BatchBuilder.HEADER + bound));
            if (!memory.tryTake(capacity)) {
                return capacity;
            }
            long opened = System.nanoTime();
            lane.open(capacity, opened, outstanding.begin());
            driver.linger(lane, opened);
            open = lane.open();
        } else if (open.length() + bound > open.capacity()) {
            int more = Math.max(open.length() + bound, Math.min(2 * open.capacity(), batchBytes)) - open.capacity();
            if (!memory.tryTake(more)) {
                return more;
            }
            lane.grow(open.capacity() + more);
        }
        int index = open.add(key, value, headers, timestamp);
        if (place != null) {
            lane.track(new Tracked(index, place));
        }
        if (open.length() >= batchBytes) {
            seal(lane);
        }
        return 0;
    }

    /** The lane whose batch records without keys fill now: one that is not held up, if there is one. */
    private ProducerLane keyless(Split now) {
        int index = sticky;
        return now.lanes()[index < now.lanes().length ? index : 0];
    }

    private void moveOn(ProducerLane from) {
        Split now = split;
        if (from.index != sticky || now == null) {
            return;
        }
        int count = now.lanes().length;
        int next = (from.index + 1) % count;
        for (int looked = 0; looked < Math.min(count, 64) && now.lanes()[next].queue.isHeldUp(); looked++) {
            next = (next + 1) % count;
        }
        sticky = next;
    }

    /** Completes a lane's open batch, and has it sent. Called with the lane's lock. */
    void seal(ProducerLane lane) {
        lane.queue.add(lane.seal(options.compression(), memory, options.deadline().toNanos()));
        lane.link.ready(lane);
        moveOn(lane);
    }

    private void sealAll() {
        for (ProducerLane lane : split.lanes()) {
            synchronized (lane) {
                if (lane.open() != null) {
                    seal(lane);
                }
            }
        }
    }

    /**
     * Waits until everything appended before is acknowledged. What was given up before the call is told to one caller alone, and
     * to those who append by {@link #appendTracked}.
     *
     * @throws ProduceException if records were given up since the last call, or while they were waited for
     * @throws IllegalStateException in a callback of a record's future
     */
    public void flush() throws IOException {
        notInCallback("flush");
        long mark = outstanding.mark();
        sealAll();
        outstanding.await(mark);
    }

    /** Throws why records were given up since the last look, without waiting. */
    public void checkFailures() throws ProduceException {
        outstanding.check();
    }

    /** Bytes of batches that are not acknowledged. */
    public long memoryUsed() {
        return memory.used();
    }

    /**
     * Flushes, and ends; a transaction that is open is aborted. Use it also after an error. While another thread closes the
     * producer this one waits for it.
     *
     * @throws IllegalStateException in a callback of a record's future
     */
    @Override
    public void close() throws IOException {
        notInCallback("close");
        if (!closing.compareAndSet(false, true)) {
            try {
                ended.await();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
                throw new InterruptedIOException("interrupted while another thread closes the producer");
            }
            return;
        }
        // Before the flush: a record is refused, or the flush waits for it.
        closed = true;
        try {
            // Appends that are under way have a lane's lock.
            sealAll();
            if (driver.transaction() != null && driver.transaction().sends()) {
                abortTransaction();
            } else {
                flush();
            }
        } finally {
            driver.close();
            ended.countDown();
        }
    }

    /** A callback runs on a thread that tells of acknowledgements: none come while it waits for one. */
    private void notInCallback(String what) {
        if (telling.get()) {
            throw new IllegalStateException(what + " in a callback of a record's future would wait for ever; have another thread do it,"
                    + " as thenRunAsync does");
        }
    }

    /** Tells those who wait for the batches. Called without any lane's lock. */
    void finish(List<SealedBatch> done) {
        for (SealedBatch batch : done) {
            memory.release(batch.counted);
            telling.set(true);
            try {
                batch.complete();
            } finally {
                telling.remove();
            }
            if (batch.error != null && driver.transaction() != null) {
                driver.transaction().fail(batch.error);
            }
            outstanding.end(batch.number, batch.error);
        }
    }

    void answered(Attempt attempt, AppendReply reply) {
        driver.answered(attempt, reply);
    }

    void unreachable() {
        driver.unreachable();
    }

    /** Whether batches of a lane may be sent for the first time. */
    boolean maySend(ProducerLane lane) {
        ProducerTransaction transaction = driver.transaction();
        return !driver.isPaused() && (transaction == null || lane.queue.isEmpty() || transaction.maySend(lane));
    }

    /**
     * Begins a transaction: the records that are appended from now on count together, or not at all. Only for producers
     * {@linkplain ProducerOptions#withTransactionalId with a transactional id}, which append nothing outside of one. A
     * producer that begins under an id fences the one before it.
     *
     * @throws KeraException with {@link ErrorCodes#FENCED_PRODUCER} if another producer has begun under the id, or
     *     somebody has aborted the one before by the id or a prefix, with {@link ErrorCodes#TRANSACTION_PREPARED} as long as
     *     the one before is prepared
     */
    public void beginTransaction() throws IOException {
        ProducerTransaction transaction = transaction();
        Cluster.ProducerId renewed = transaction.renewed();
        if (renewed != null) {
            driver.goOnAs(renewed);
        }
        outstanding.forgive();
        transaction.open();
    }

    /**
     * Has the open transaction commit where a consumer group stands: the positions count with the records, or not at all, so that a program
     * which reads, writes and goes on counts each record once. Until the transaction has ended no other consumer gets what lies below
     * the positions, also if this one is gone. Several groups may take part; for a lease that is sent again the higher position counts.
     *
     * <pre>{@code
     * ConsumerOptions manual = ConsumerOptions.to(broker).withCommitInterval(Duration.ZERO);
     * ProducerOptions transactional = ProducerOptions.to(broker).withTransactionalId("copy-1");
     * try (Consumer consumer = new Consumer("in", "copy", manual); Producer producer = new Producer("out", transactional)) {
     *     for (ConsumedBatch batch; (batch = consumer.next(wait)) != null; ) {
     *         producer.beginTransaction();
     *         for (KeraRecord record : batch.records()) {
     *             producer.append(record.key(), record.value());
     *         }
     *         producer.sendPositions(consumer.positions(List.of(batch)));
     *         producer.commitTransaction();
     *     }
     * }
     * }</pre>
     *
     * <p>A position says that all of the lease below it is in this transaction or in earlier ones: so the batches of a lease go into
     * transactions in their order. A transaction that ends in any other way than a commit that was answered has the consumer give the
     * leases back, and read on where the group stands then. One that is aborted before it has positions needs
     * {@link Consumer#rewind}. Consumers may have any order.
     *
     * @param positions of {@link Consumer#positions}
     * @throws KeraException with {@link ErrorCodes#STALE_LEASE} or {@link ErrorCodes#UNKNOWN_MEMBER} if the records go to another consumer,
     *     with {@link ErrorCodes#FENCED_PRODUCER} if another producer has begun under the id. After any exception the transaction cannot be
     *     committed any more: abort it
     * @throws IOException if the transaction has failed before, or no answer came: whether it has the positions is not known
     * @throws IllegalStateException if no transaction is open
     */
    public void sendPositions(GroupPositions positions) throws IOException {
        notInCallback("sending positions");
        transaction().sendPositions(positions);
    }

    /**
     * Sends what is open, waits until all records are acknowledged, and commits.
     *
     * @throws ProduceException if records were given up; the transaction is aborted, unless somebody else has ended it by
     *     its handle before
     * @throws IOException if the transaction was aborted meanwhile, or whether it is committed is not known
     */
    public void commitTransaction() throws IOException {
        ProducerTransaction transaction = transaction();
        TransactionHandle handle = closeTransaction();
        boolean isCommitted = false;
        try {
            if (handle == null) {
                return;
            }
            if (!transaction.end(handle, true)) {
                throw new IOException("the transaction of " + handle.transactionalId()
                        + " was aborted: its time was over, or somebody aborted it");
            }
            isCommitted = true;
            transaction.settled();
        } finally {
            transaction.over(isCommitted);
        }
    }

    /**
     * Sends what is open, waits until all records are acknowledged, and has the transaction wait from then on, without a
     * timeout, until somebody ends it by its handle: see {@link Transactions}. The next one begins once it has ended.
     *
     * @return null if nothing was appended
     * @throws ProduceException if records were given up; the transaction is aborted
     * @throws IOException if it was aborted meanwhile, or whether it is prepared is not known
     */
    public TransactionHandle prepareTransaction() throws IOException {
        ProducerTransaction transaction = transaction();
        TransactionHandle handle = closeTransaction();
        try {
            if (handle != null) {
                transaction.prepare(handle);
                transaction.settled();
            }
        } finally {
            transaction.over(false);
        }
        return handle;
    }

    /** Gives up all records of the transaction. */
    public void abortTransaction() throws IOException {
        ProducerTransaction transaction = transaction();
        TransactionHandle handle = transaction.take();
        driver.giveUpTransaction();
        outstanding.forgive();
        try {
            if (handle != null) {
                transaction.end(handle, false);
            }
        } finally {
            transaction.over(false);
        }
    }

    /** Takes no more records, and waits for those that were taken. Null if there were none. */
    private TransactionHandle closeTransaction() throws IOException {
        notInCallback("ending a transaction");
        ProducerTransaction transaction = transaction();
        transaction.closing();
        try {
            transaction.awaitPositions();
            sealAll();
            // What another thread was about to append has its number only since its lane is sealed.
            outstanding.await(outstanding.mark());
            transaction.check();
            return transaction.takeClosed();
        } catch (IOException error) {
            try {
                if (transaction.isClosing()) {
                    abortTransaction();
                }
            } catch (IOException also) {
                error.addSuppressed(also);
            }
            throw error;
        }
    }

    private ProducerTransaction transaction() {
        ProducerTransaction transaction = driver.transaction();
        if (transaction == null) {
            throw new IllegalStateException("the producer has no transactional id: set one in its options");
        }
        return transaction;
    }

    ConnectOptions connect() {
        return options.connect();
    }

    /** The header of an append to a lane. Called with its lock. */
    byte[] header(ProducerLane lane) {
        Wire.Writer header = new Wire.Writer().bytes(1, streamId).number(2, lane.streamlet);
        header.number(3, Integer.toUnsignedLong(lane.lane)).number(4, lane.split.generation());
        header.number(5, byKey ? lane.split.partitions() : 0);
        return options.transactionalId().isEmpty() ? header.done() : header.text(6, options.transactionalId()).done();
    }

    Resplit resplit(ProducerLane[] lanes) {
        return new Resplit(lanes, placed, batchBytes, options.compression(), memory, outstanding);
    }

    SealedBatch sealForSplit(ProducerLane lane) {
        return lane.seal(Compression.NONE, memory, options.deadline().toNanos());
    }

    Split split() {
        return split;
    }

    void publish(Split next) {
        split = next;
    }
}
