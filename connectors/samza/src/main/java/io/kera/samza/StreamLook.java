package io.kera.samza;

import io.kera.client.Admin;
import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.StreamInfo;
import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.samza.SamzaException;
import org.apache.samza.system.SystemStreamPartition;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The streams that a consumer reads: who owns them, whether they are still the same, and whether their lanes grow. One thread uses it. */
final class StreamLook {
    private static final Logger LOG = LoggerFactory.getLogger(StreamLook.class);
    /** How often growth is looked for. */
    private static final long GROWTH_NANOS = Duration.ofSeconds(5).toNanos();
    /** While lanes of a stream cannot be read, who owns them is looked up so often. */
    private static final long DOUBT_NANOS = Duration.ofMillis(200).toNanos();

    private final SystemSettings settings;
    private final Admin admin;
    private final Map<String, Seen> streams = new HashMap<>();

    private static final class Seen {
        /** As it was when the job began. */
        private final StreamInfo first;
        private StreamInfo info;
        private long looked = System.nanoTime();
        private boolean doubted;
        private boolean told;

        Seen(StreamInfo info) {
            first = info;
            this.info = info;
        }
    }

    StreamLook(SystemSettings settings, Admin admin) {
        this.settings = settings;
        this.admin = admin;
    }

    /**
     * The stream that a partition is of.
     *
     * @param position from which the job reads it
     * @throws SamzaException if the offset is of another stream, or of fewer lanes and the job has state
     */
    StreamInfo begin(SystemStreamPartition partition, Position position) {
        String name = partition.getStream();
        Seen seen = streams.computeIfAbsent(name, any -> new Seen(Retries.ask(
                "stream " + name + " of system " + settings.system() + " cannot be looked up", () -> admin.stream(name))));
        StreamInfo stream = seen.first;
        String id = KeraSystemAdmin.hex(stream.id());
        if (position.stream() != null && !position.stream().equals(id)) {
            throw new SamzaException(madeAgain(name, position.stream(), id));
        }
        if (partition.getPartition().getPartitionId() >= stream.partitions()) {
            throw new SamzaException("stream " + name + " has " + stream.partitions() + " lanes in all: " + partition + " is none");
        }
        if (position.lanes() != 0 && position.lanes() != stream.partitions() && settings.isGrowthRefused()) {
            throw new SamzaException(grown(name, position.lanes(), stream.partitions()));
        }
        return stream;
    }

    private String madeAgain(String name, String before, String now) {
        return "stream " + name + " of system " + settings.system() + " was deleted, and another one has its name: its id was "
                + before + " and is " + now + "; to read the new one, start " + settings.job() + " with streams." + name
                + ".samza.reset.offset = true, once";
    }

    private String grown(String name, int before, int now) {
        return "stream " + name + " of system " + settings.system() + " has grown from " + before + " to " + now
                + " lanes, so that keys moved to other lanes, and " + settings.job()
                + " has tasks and state for " + before + ": start it under another job.name or job.id and with other streams for"
                + " its state, from the oldest records, so that it builds its state anew; or, if its state does not depend on keys, set systems." + settings.system() + ".kera."
                + SystemSettings.GROWTH + " to later";
    }

    /** Looks at all of them from time to time. */
    void look() {
        long now = System.nanoTime();
        for (Map.Entry<String, Seen> each : streams.entrySet()) {
            Seen seen = each.getValue();
            if (now - seen.looked > (seen.doubted ? DOUBT_NANOS : GROWTH_NANOS)) {
                seen.looked = now;
                look(each.getKey(), seen);
            }
        }
    }

    private void look(String name, Seen seen) {
        StreamInfo info;
        try {
            info = admin.stream(name);
        } catch (KeraException error) {
            if (error.code() == ErrorCodes.UNKNOWN_STREAM) {
                throw new SamzaException("stream " + name + " of system " + settings.system() + " was deleted", error);
            }
            LOG.debug("stream {} cannot be looked up", name, error);
            return;
        } catch (IOException error) {
            // Whoever reads tells of it.
            LOG.debug("stream {} cannot be looked up", name, error);
            return;
        }
        String before = KeraSystemAdmin.hex(seen.first.id());
        String id = KeraSystemAdmin.hex(info.id());
        if (!before.equals(id)) {
            throw new SamzaException(madeAgain(name, before, id));
        }
        seen.info = info;
        seen.doubted = false;
        if (info.partitions() != seen.first.partitions()) {
            if (settings.isGrowthRefused()) {
                throw new SamzaException(grown(name, seen.first.partitions(), info.partitions()));
            }
            if (!seen.told) {
                seen.told = true;
                LOG.warn("stream {} of system {} has grown from {} to {} lanes; {} reads the new ones when it is started again, with"
                        + " streams.{}.samza.offset.default = oldest from their first record", name, settings.system(),
                        seen.first.partitions(), info.partitions(), settings.job(), name);
            }
        }
    }

    /** As it was looked up last. */
    StreamInfo info(String name) {
        return streams.get(name).info;
    }

    /** A lane of it could not be read: it may have another owner. */
    void doubt(String name) {
        streams.get(name).doubted = true;
    }
}
