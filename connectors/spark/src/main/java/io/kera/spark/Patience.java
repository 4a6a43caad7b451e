package io.kera.spark;

import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.LoginException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Asks brokers again that do not answer. The log tells of it, and it ends after a while. Not thread-safe. */
final class Patience {
    private static final Logger LOG = LoggerFactory.getLogger(Patience.class);
    private static final long PAUSE_MILLIS = 50;
    /** The log tells after so long, and again each time so much has passed. */
    private static final long TELL_NANOS = Duration.ofSeconds(2).toNanos();
    private static final long TELL_AGAIN_NANOS = Duration.ofSeconds(30).toNanos();
    private static final long MOST_NANOS = Duration.ofMinutes(2).toNanos();

    /** What is asked. */
    @FunctionalInterface
    interface Question<T> {
        T ask() throws IOException;
    }

    private final String what;
    private boolean silent;
    private long since;
    private long tell;

    /** @param what cannot be done while there is no answer */
    Patience(String what) {
        this.what = what;
    }

    /** The answer, when it comes. */
    static <T> T ask(String what, Question<T> question) throws IOException {
        Patience patience = new Patience(what);
        while (true) {
            try {
                return question.ask();
            } catch (IOException error) {
                patience.failed(error);
            }
        }
    }

    /** For where Spark takes no checked errors. */
    static <T> T unchecked(Question<T> question) {
        try {
            return question.ask();
        } catch (IOException error) {
            throw new UncheckedIOException(error.getMessage(), error);
        }
    }

    /** There was an answer. */
    void answered() {
        silent = false;
    }

    /**
     * There was none. Waits a little, for the next try.
     *
     * @throws IOException if it is of no use to ask again
     */
    void failed(IOException error) throws IOException {
        long now = System.nanoTime();
        if (!silent) {
            silent = true;
            since = now;
            tell = now + TELL_NANOS;
        }
        boolean refused = error instanceof KeraException answer && !ErrorCodes.isRetryable(answer.code());
        if (refused || error instanceof LoginException || error instanceof InterruptedIOException
                || now - since > MOST_NANOS) {
            throw new IOException(what + ": " + error.getMessage(), error);
        }
        if (now - tell >= 0) {
            LOG.warn("{} since {} s: {}; brokers are asked again", what, Duration.ofNanos(now - since).toSeconds(),
                    error.getMessage());
            tell = now + TELL_AGAIN_NANOS;
        }
        try {
            Thread.sleep(PAUSE_MILLIS);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException(what + ": interrupted while brokers were asked again");
        }
    }
}
