package io.kera.flink;

import io.kera.client.Pinning;
import java.io.Serializable;
import java.util.List;

/**
 * What a source is told.
 *
 * @param bootstrap addresses of brokers, HOST:PORT
 * @param streams their names; empty if there is a pattern
 * @param pattern what the names of streams match; null: there are names
 * @param growth what happens where lanes grow
 * @param noOrder why {@link Growth#REFUSED}, if the job cannot keep order
 * @param discoveryMillis how often it looks whether lanes have grown
 * @param onDataLossFail whether a job fails whose next record was deleted; otherwise it goes on at the earliest one
 * @param group consumer group that shows where the job stands; null: none
 * @param connection how to connect
 * @param keyShares by how many readers the keys of a lane are shared with {@link Order#KEY}; 0: as parallelism asks for
 * @param rack where readers are; null: where their TaskManager says ({@link KeraSource#RACK})
 * @param pinning how what checkpoints need is pinned; null: not at all
 */
record SourceSettings(
        List<String> bootstrap,
        List<String> streams,
        String pattern,
        Order order,
        Start start,
        boolean bounded,
        Growth growth,
        String noOrder,
        long discoveryMillis,
        boolean onDataLossFail,
        String group,
        Connecting connection,
        int keyShares,
        String rack,
        Pinning pinning)
        implements Serializable {
    private static final long serialVersionUID = 1L;
}
