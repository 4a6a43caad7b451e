package io.kera.client;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.HashSet;
import java.util.Set;
import java.util.TreeMap;

/** The batches that are not finished, by number, and why the first was given up that nobody was told of yet. */
final class Outstanding {
    private final TreeMap<Long, Integer> batches = new TreeMap<>();
    private final Set<Waiting> waiting = new HashSet<>();
    private long next;
    private ProduceException failure;

    /** Somebody who waits for all batches below a number, and why the first of them was given up meanwhile. */
    private static final class Waiting {
        private final long mark;
        private ProduceException failure;

        private Waiting(long mark) {
            this.mark = mark;
        }
    }

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
        for (Waiting each : waiting) {
            if (number < each.mark && each.failure == null) {
                each.failure = error;
            }
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
     * @throws ProduceException if one was given up since the last call, or one of these while it was waited for, whoever else
     *     is told
     */
    synchronized void await(long mark) throws IOException {
        Waiting me = new Waiting(mark);
        waiting.add(me);
        try {
            while (!batches.isEmpty() && batches.firstKey() < mark) {
                wait();
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while waiting for acknowledgements");
        } finally {
            waiting.remove(me);
        }
        check();
        if (me.failure != null) {
            throw me.failure;
        }
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
