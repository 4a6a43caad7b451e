package io.kera.spark;

import io.kera.client.PinKeeper;
import io.kera.client.Pinning;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The pins of batch reads: each lives until Spark says that the execution which planned it has ended. Thread-safe. */
final class PinnedReads extends SparkListener {
    private static final Logger LOG = LoggerFactory.getLogger(PinnedReads.class);
    private static final Map<SparkContext, PinnedReads> OF = new HashMap<>();

    /** @param scan Spark may plan it several times within an execution: the first time it needs the most */
    private record Read(Object scan, QueryPins pins, Set<String> streams) {
        private void end() {
            streams.forEach(pins::delete);
            pins.close();
        }
    }

    /** By the number of the execution. */
    private final Map<Long, List<Read>> reads = new HashMap<>();

    private PinnedReads() {}

    /**
     * Pins what a read needs, under a name that begins with the one given, and waits until that is done.
     *
     * @param scan what is read
     * @param lanes by stream: where each lane is read from; of one without records, where it ends
     * @throws IllegalStateException if a pin cannot be set, and the query asks for it
     */
    static void pin(Object scan, BrokerAccess access, Pinning pinning, Map<String, PinnedLanes> lanes) throws IOException {
        SparkContext context = SparkSession.active().sparkContext();
        String execution = context.getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
        if (execution == null) {
            // It is planned alone, as to be explained, or read as an RDD: nobody would say when it ends.
            LOG.warn("a read of {} is not pinned: Spark runs it outside of an execution of SQL", String.join(",", lanes.keySet()));
            return;
        }
        PinnedReads all = of(context);
        QueryPins known = all.known(Long.parseLong(execution), scan);
        if (known != null) {
            known.await();
            known.check();
            return;
        }
        Pinning own = pinning.renamed(pinning.name() + "-" + UUID.randomUUID().toString().substring(0, 8));
        QueryPins pins = new QueryPins(access, own, PinKeeper.Needs.NAMED_LANES, context.appName(), "the read");
        all.add(Long.parseLong(execution), new Read(scan, pins, lanes.keySet()));
        lanes.forEach((stream, of) -> pins.move(stream, of.id(), of.positions()));
        pins.await();
        pins.check();
    }

    /** Where the lanes of the stream with this id are read from. */
    record PinnedLanes(String id, Map<LaneId, Long> positions) {}

    private static PinnedReads of(SparkContext context) {
        synchronized (OF) {
            return OF.computeIfAbsent(context, any -> {
                PinnedReads made = new PinnedReads();
                context.addSparkListener(made);
                return made;
            });
        }
    }

    private QueryPins known(long execution, Object scan) {
        synchronized (reads) {
            return reads.getOrDefault(execution, List.of()).stream().filter(each -> each.scan() == scan).map(Read::pins).findAny()
                    .orElse(null);
        }
    }

    private void add(long execution, Read read) {
        synchronized (reads) {
            reads.computeIfAbsent(execution, any -> new ArrayList<>()).add(read);
        }
    }

    @Override
    public void onOtherEvent(SparkListenerEvent event) {
        if (event instanceof SparkListenerSQLExecutionEnd ended) {
            List<Read> over;
            synchronized (reads) {
                over = reads.remove(ended.executionId());
            }
            if (over != null) {
                // Brokers that are away must not hold up Spark's other news.
                Thread thread = new Thread(() -> over.forEach(Read::end), "kera-pins-end");
                thread.setDaemon(true);
                thread.start();
            }
        }
    }

    @Override
    public void onApplicationEnd(SparkListenerApplicationEnd ended) {
        synchronized (OF) {
            OF.values().remove(this);
        }
        List<Read> over = new ArrayList<>();
        synchronized (reads) {
            reads.values().forEach(over::addAll);
            reads.clear();
        }
        over.forEach(Read::end);
    }
}
