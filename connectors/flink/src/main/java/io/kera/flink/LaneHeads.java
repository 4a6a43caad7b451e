package io.kera.flink;

import io.kera.client.Admin;
import io.kera.flink.LanePlan.LaneId;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Where lanes end, looked up every second on a thread of its own: a broker that is away holds up no reader by that. Many streams are looked up
 * less often.
 */
final class LaneHeads implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(LaneHeads.class);
    private static final long LOOK_NANOS = TimeUnit.SECONDS.toNanos(1);
    /** The pause after a look is so many times as long as it took. */
    private static final int REST = 9;

    private final Admin admin;
    private final Supplier<Set<String>> streams;
    private final Map<String, Map<LaneId, Long>> heads = new ConcurrentHashMap<>();
    private final ScheduledExecutorService thread;
    private volatile Future<?> next;
    private volatile boolean closed;

    LaneHeads(SourceSettings settings, Supplier<Set<String>> streams) throws IOException {
        this.streams = streams;
        admin = new Admin(settings.bootstrap(), settings.connection().options());
        thread = Executors.newSingleThreadScheduledExecutor(work -> {
            Thread made = new Thread(work, "kera-heads");
            made.setDaemon(true);
            return made;
        });
    }

    void start() {
        thread.execute(this::look);
    }

    private void look() {
        if (closed) {
            return;
        }
        long begun = System.nanoTime();
        lookOnce();
        long pause = Math.max(LOOK_NANOS, REST * (System.nanoTime() - begun));
        try {
            next = thread.schedule(this::look, pause, TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException error) {
            // It is closed.
        }
    }

    private void lookOnce() {
        for (String stream : streams.get()) {
            try {
                Map<LaneId, Long> known = new HashMap<>(of(stream));
                for (Admin.LaneBounds lane : admin.bounds(stream)) {
                    known.put(new LaneId(lane.streamlet(), lane.lane()), lane.head());
                }
                heads.put(stream, known);
            } catch (IOException | RuntimeException error) {
                // It is for a metric alone; what is known of before counts on.
                LOG.debug("where lanes of stream {} end is not known: {}", stream, error.getMessage());
            }
        }
    }

    /** Those of a stream that are known. */
    Map<LaneId, Long> of(String stream) {
        return heads.getOrDefault(stream, Map.of());
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        if (next != null) {
            next.cancel(false);
        }
        // Behind a look that is under way, which has the connection.
        thread.execute(admin::close);
        thread.shutdown();
    }
}
