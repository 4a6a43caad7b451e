package io.kera.flink;

import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.LoginException;
import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The lanes that do not answer: the log tells of them, and the job fails if one stays so. Not thread-safe. */
final class Silence {
    private static final Logger LOG = LoggerFactory.getLogger(Silence.class);
    /** The log tells of a lane after so long, and again each time so much has passed. */
    private static final long TELL_NANOS = Duration.ofSeconds(2).toNanos();
    private static final long TELL_AGAIN_NANOS = Duration.ofSeconds(30).toNanos();
    /** A lane that does not answer for so long fails the job. */
    private static final long PATIENCE_NANOS = Duration.ofMinutes(2).toNanos();

    /** An owner that answers so may hear a moment later of a lane, or stream, that another broker knows. */
    private static final Set<Integer> UNHEARD =
            Set.of(ErrorCodes.UNKNOWN_STREAM, ErrorCodes.UNKNOWN_STREAMLET, ErrorCodes.UNKNOWN_LANE);
    private static final long UNHEARD_NANOS = Duration.ofSeconds(10).toNanos();

    /** One that nobody has asked for so long begins anew. */
    private static final long FORGET_NANOS = Duration.ofMinutes(1).toNanos();

    /** Since when it is silent, when it was asked last, and when the log tells of it. */
    private record Since(long nanos, long asked, long tell) {}

    private final Map<String, Since> lanes = new HashMap<>();
    private final long patienceNanos;
    private final Consumer<String> log;

    Silence() {
        this(PATIENCE_NANOS, LOG::warn);
    }

    Silence(long patienceNanos, Consumer<String> log) {
        this.patienceNanos = patienceNanos;
        this.log = log;
    }

    /** A lane answered, or nobody asks it any more. */
    void ended(String lane) {
        lanes.remove(lane);
    }

    /**
     * A lane did not answer; it will be asked again.
     *
     * @param position the ordinal that was asked for
     * @param owner HOST:PORT of the broker that was asked; empty: not known
     * @param begun when it was asked, by {@link System#nanoTime}
     * @throws IOException if it is of no use to ask again
     */
    void failed(String lane, long position, String owner, IOException error, long begun) throws IOException {
        failed(lane, position, owner, error, begun, System.nanoTime());
    }

    void failed(String lane, long position, String owner, IOException error, long begun, long now) throws IOException {
        Since before = lanes.get(lane);
        boolean fresh = before == null || begun - before.asked > FORGET_NANOS;
        long since = fresh ? begun : before.nanos;
        long tell = fresh ? begun + TELL_NANOS : before.tell;
        boolean refused = error instanceof KeraException answer && !ErrorCodes.isRetryable(answer.code())
                && !(UNHEARD.contains(answer.code()) && now - since < UNHEARD_NANOS);
        String what = "lane " + lane + (owner.isEmpty() ? "" : " of broker " + owner) + " cannot be read at " + position;
        if (refused || error instanceof LoginException || now - since > patienceNanos) {
            throw new IOException(what + ": " + error.getMessage(), error);
        }
        if (now - tell >= 0) {
            log.accept(what + " since " + Duration.ofNanos(now - since).toSeconds() + " s: " + error.getMessage() + "; it is asked again");
            tell = now + TELL_AGAIN_NANOS;
        }
        lanes.put(lane, new Since(since, now, tell));
    }
}
