package io.kera.client;

import java.time.Duration;
import java.util.List;

/**
 * Settings of a {@link Producer}.
 *
 * @param bootstrap addresses of brokers, HOST:PORT
 * @param connect how to connect
 * @param batchSize bytes at which a batch is full, before compression; the stream's own limit also holds
 * @param linger how long a batch waits for more records
 * @param memoryLimit bytes of all batches that are not acknowledged
 * @param compression how batches are compressed
 * @param deadline how long after its first record a batch is given up; until then it is sent again
 * @param transactionalId under which records are appended in transactions; empty without
 * @param transactionTimeout how long a transaction may be open that is not prepared; at most
 *     {@code transactions.max_timeout} of the brokers, which is 15 minutes if they do not say otherwise
 * @param transactionHeartbeats whether the timeout runs from the producer's last sign of life, not from the transaction's begin
 */
public record ProducerOptions(
        List<String> bootstrap,
        ConnectOptions connect,
        int batchSize,
        Duration linger,
        long memoryLimit,
        Compression compression,
        Duration deadline,
        String transactionalId,
        Duration transactionTimeout,
        boolean transactionHeartbeats) {
    private static final int SMALLEST_BATCH = 1 << 10;

    public ProducerOptions {
        bootstrap = List.copyOf(bootstrap);
        check(!bootstrap.isEmpty(), "name a broker to begin with");
        check(batchSize >= SMALLEST_BATCH, "batchSize is " + batchSize + ": use " + SMALLEST_BATCH + " or more");
        check(!linger.isNegative() && linger.compareTo(deadline) < 0, "linger must be below the deadline of " + deadline);
        check(memoryLimit >= batchSize, "memoryLimit is " + memoryLimit + ": it must hold a batch");
        check(transactionTimeout.toMillis() > 0 && transactionTimeout.compareTo(Duration.ofDays(24)) <= 0,
                "transactionTimeout is " + transactionTimeout + ": use a millisecond to 24 days");
        check(deadline.compareTo(Duration.ofDays(1)) <= 0, "deadline is " + deadline + ": use at most a day");
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalArgumentException(otherwise);
        }
    }

    /** Batches of 128 KiB, a linger of 1 ms, 64 MiB of memory, no compression, a deadline of 30 s. */
    public static ProducerOptions to(String... bootstrap) {
        return new ProducerOptions(
                List.of(bootstrap),
                ConnectOptions.DEFAULT,
                128 << 10,
                Duration.ofMillis(1),
                64L << 20,
                Compression.NONE,
                Duration.ofSeconds(30),
                "",
                Duration.ofMinutes(1),
                false);
    }

    public ProducerOptions withConnect(ConnectOptions other) {
        return new ProducerOptions(bootstrap, other, batchSize, linger, memoryLimit, compression, deadline, transactionalId,
                transactionTimeout, transactionHeartbeats);
    }

    public ProducerOptions withBatchSize(int bytes) {
        return new ProducerOptions(bootstrap, connect, bytes, linger, memoryLimit, compression, deadline, transactionalId,
                transactionTimeout, transactionHeartbeats);
    }

    public ProducerOptions withLinger(Duration other) {
        return new ProducerOptions(bootstrap, connect, batchSize, other, memoryLimit, compression, deadline, transactionalId,
                transactionTimeout, transactionHeartbeats);
    }

    public ProducerOptions withMemoryLimit(long bytes) {
        return new ProducerOptions(bootstrap, connect, batchSize, linger, bytes, compression, deadline, transactionalId,
                transactionTimeout, transactionHeartbeats);
    }

    public ProducerOptions withCompression(Compression other) {
        return new ProducerOptions(bootstrap, connect, batchSize, linger, memoryLimit, other, deadline, transactionalId,
                transactionTimeout, transactionHeartbeats);
    }

    public ProducerOptions withDeadline(Duration other) {
        return new ProducerOptions(bootstrap, connect, batchSize, linger, memoryLimit, compression, other, transactionalId,
                transactionTimeout, transactionHeartbeats);
    }

    /** Records are appended in transactions: see {@link Producer#beginTransaction}. */
    public ProducerOptions withTransactionalId(String id) {
        return new ProducerOptions(bootstrap, connect, batchSize, linger, memoryLimit, compression, deadline, id,
                transactionTimeout, transactionHeartbeats);
    }

    public ProducerOptions withTransactionTimeout(Duration other) {
        return new ProducerOptions(bootstrap, connect, batchSize, linger, memoryLimit, compression, deadline, transactionalId,
                other, transactionHeartbeats);
    }

    /**
     * A transaction may be open for as long as the producer lives: its timeout runs from the last sign of life, which a thread of the
     * producer sends while a transaction is open. Needs the right {@code two-phase-commit} on the transactional id; with brokers of
     * earlier versions, and while that right is gone, the timeout runs from the begin.
     */
    public ProducerOptions withTransactionHeartbeats(boolean wanted) {
        return new ProducerOptions(bootstrap, connect, batchSize, linger, memoryLimit, compression, deadline, transactionalId,
                transactionTimeout, wanted);
    }
}
