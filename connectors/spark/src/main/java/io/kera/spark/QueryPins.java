package io.kera.spark;

import io.kera.client.LanePosition;
import io.kera.client.PinKeeper;
import io.kera.client.Pinning;
import java.io.InterruptedIOException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The pins of the streams that a query reads. Thread-safe. */
final class QueryPins implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(QueryPins.class);

    private final Pinning pinning;
    private final PinKeeper keeper;
    /** Why a pin is not where it should be; null: each is, as far as is known. */
    private volatile String failure;

    /**
     * Pins nothing yet.
     *
     * @param job a name, for people
     * @param what needs the records, as in "the last micro-batch"
     */
    QueryPins(BrokerAccess access, Pinning pinning, PinKeeper.Needs needs, String job, String what) {
        this.pinning = pinning;
        keeper = new PinKeeper(access::admin, pinning, needs, job, what, this::failed);
    }

    private void failed(String why, boolean isNews) {
        failure = why;
        if (isNews) {
            LOG.warn(why);
        } else {
            LOG.debug(why);
        }
    }

    /** A stream's records are needed from these positions on. Returns at once. */
    void move(String stream, String id, Map<LaneId, Long> positions) {
        List<LanePosition> all = new ArrayList<>();
        positions.forEach((lane, ordinal) -> all.add(new LanePosition(lane.streamlet(), lane.lane(), ordinal)));
        keeper.move(stream, HexFormat.of().parseHex(id), all);
    }

    /** Nothing of a stream is needed any more. Returns at once. */
    void delete(String stream) {
        keeper.delete(stream);
    }

    /** Waits until pins stand, or it is known that they do not, for half a minute for each stream at most. */
    void await() throws InterruptedIOException {
        keeper.await();
    }

    /** @throws IllegalStateException if a pin is not where it should be, and the query asks for it */
    void check() {
        String why = failure;
        if (why != null && pinning.isRequired()) {
            throw new IllegalStateException(why);
        }
    }

    /** Waits a little for what is still to be done. */
    @Override
    public void close() {
        keeper.close();
    }
}
