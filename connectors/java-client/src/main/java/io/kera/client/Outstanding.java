package io.kera.client;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.TreeMap;

/** The batches that are not finished, by number, and why the first was given up that nobody was told of yet. */
final class Outstanding {
    private final TreeMap<Long, Integer> batches = new TreeMap<>();
    private long next;
    private ProduceException failure;

    /** The number of a new batch. */
    synchronized long begin() {
        batches.put(next, 1);
        return next++;
    }

    /** One more batch has records of that number. */
    synchronized void retain(long number) {
        batches.merge(number, 1, Integer::sum);
    }

    synchronized void end(long number, ProduceException error) {
        batches.computeIfPresent(number, (key, count) -> count == 1 ? null : count - 1);
        if (failure == null) {
            failure = error;
        }
        notifyAll();
    }

    /** The number that the next batch gets. */
    synchronized long mark() {
        return next;
    }

    /**
     * Waits until every batch below {@code mark} is finished.
     *
     * @throws ProduceException if one was given up since the last call
     */
    synchronized void await(long mark) throws IOException {
        try {
            while (!batches.isEmpty() && batches.firstKey() < mark) {
                wait();
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while waiting for acknowledgements");
        }
        check();
    }

    /** What was given up before is told to nobody any more. */
    synchronized void forgive() {
        failure = null;
    }

    /** Throws why a batch was given up, once. */
    synchronized void check() throws ProduceException {
        ProduceException told = failure;
        failure = null;
        if (told != null) {
            throw told;
        }
    }
}
