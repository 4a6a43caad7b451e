package io.kera.samza;

import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.LoginException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.time.Duration;
import org.apache.samza.SamzaException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Asks brokers again that do not answer; the log tells of it. */
final class Retries {
    private static final Logger LOG = LoggerFactory.getLogger(Retries.class);
    static final long PAUSE_MILLIS = 50;
    private static final long TELL_NANOS = Duration.ofSeconds(2).toNanos();
    private static final long TELL_AGAIN_NANOS = Duration.ofSeconds(30).toNanos();
    private static final long MOST_NANOS = Duration.ofMinutes(2).toNanos();
    /** A broker may hear of a user later than others. */
    private static final long LOGIN_NANOS = Duration.ofSeconds(10).toNanos();

    /** What is asked. */
    @FunctionalInterface
    interface Question<T> {
        T ask() throws IOException;
    }

    private final String what;
    private long failures;
    private long since;
    private long tell;

    /** @param what is not done while there is no answer */
    Retries(String what) {
        this.what = what;
    }

    /** The answer, when it comes within two minutes. */
    static <T> T ask(String what, Question<T> question) {
        Retries retries = new Retries(what);
        while (true) {
            try {
                return question.ask();
            } catch (IOException error) {
                retries.failed(error);
                if (System.nanoTime() - retries.since > MOST_NANOS) {
                    throw new SamzaException(what + ": " + error.getMessage(), error);
                }
                retries.pause(error);
            }
        }
    }

    private void pause(IOException error) {
        try {
            Thread.sleep(PAUSE_MILLIS);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
            throw new SamzaException(what + ": interrupted while brokers were asked again", error);
        }
    }

    void answered() {
        failures = 0;
    }

    /**
     * An attempt failed, and another one may follow.
     *
     * @throws SamzaException if it is of no use to ask again
     */
    void failed(IOException error) {
        long now = System.nanoTime();
        if (failures++ == 0) {
            since = now;
            tell = now + TELL_NANOS;
        }
        boolean refused = error instanceof KeraException answer && !ErrorCodes.isRetryable(answer.code())
                || error instanceof LoginException && now - since > LOGIN_NANOS;
        if (refused || error instanceof InterruptedIOException) {
            throw new SamzaException(what + ": " + error.getMessage(), error);
        }
        if (now - tell >= 0) {
            LOG.warn("{} since {} s: {}; brokers are asked again", what, Duration.ofNanos(now - since).toSeconds(),
                    error.getMessage());
            tell = now + TELL_AGAIN_NANOS;
        }
    }
}
