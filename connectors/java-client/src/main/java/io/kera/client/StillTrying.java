package io.kera.client;

import java.io.IOException;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/** Has the log tell what is asked for again and again, so that nothing waits in silence. Not thread-safe. */
final class StillTrying {
    private static final System.Logger LOG = System.getLogger("io.kera.client");
    /** The log tells after so long, and again each time so much has passed. */
    static final long TELL_NANOS = TimeUnit.SECONDS.toNanos(2);
    static final long TELL_AGAIN_NANOS = TimeUnit.SECONDS.toNanos(30);

    private final String what;
    private final Consumer<String> log;
    private boolean failing;
    private long since;
    private long tell;

    /** Of what does not answer, as in "the coordinator of group g". */
    StillTrying(String what) {
        this(what, text -> LOG.log(System.Logger.Level.WARNING, text));
    }

    StillTrying(String what, Consumer<String> log) {
        this.what = what;
        this.log = log;
    }

    /** An attempt failed, and another one follows. */
    void failed(IOException why, long now) {
        if (!failing) {
            failing = true;
            since = now;
            tell = now + TELL_NANOS;
        }
        if (now - tell >= 0) {
            long seconds = TimeUnit.NANOSECONDS.toSeconds(now - since);
            log.accept(what + " has not answered for " + seconds + " s and is asked again: " + why.getMessage());
            tell = now + TELL_AGAIN_NANOS;
        }
    }

    void answered() {
        failing = false;
    }
}
