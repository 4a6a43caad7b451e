package io.kera.client;

import java.io.IOException;
import java.util.concurrent.TimeUnit;

/** Bytes that a producer's batches may take. Who finds none waits. */
final class MemoryBudget {
    private final long limit;
    private long used;
    private int waiters;

    MemoryBudget(long limit) {
        this.limit = limit;
    }

    /** Takes so many bytes if they are there. */
    synchronized boolean tryTake(int bytes) {
        if (used + bytes > limit && used > 0) {
            return false;
        }
        used += bytes;
        return true;
    }

    /** Takes bytes that are used already, beyond the limit if it must be. */
    synchronized void force(int bytes) {
        used += bytes;
    }

    synchronized void release(int bytes) {
        used -= bytes;
        notifyAll();
    }

    synchronized long used() {
        return used;
    }

    /** True if somebody waits for bytes. */
    synchronized boolean isPressed() {
        return waiters > 0;
    }

    /**
     * Waits until so many bytes may be there.
     *
     * @throws IOException if they are not before {@code deadline}, by {@link System#nanoTime}
     */
    synchronized void await(int bytes, long deadline) throws IOException {
        waiters++;
        try {
            while (used + bytes > limit && used > 0) {
                long left = deadline - System.nanoTime();
                if (left <= 0) {
                    throw new IOException("the producer's memory of " + limit
                            + " bytes is full of records that are not acknowledged; raise memoryLimit, or look why brokers are slow");
                }
                TimeUnit.NANOSECONDS.timedWait(this, left);
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new java.io.InterruptedIOException("interrupted while waiting for the producer's memory");
        } finally {
            waiters--;
        }
    }
}
