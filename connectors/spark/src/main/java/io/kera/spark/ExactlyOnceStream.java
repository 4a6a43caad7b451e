package io.kera.spark;

import io.kera.spark.SinkLog.Decision;
import java.io.IOException;
import java.util.UUID;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Appends micro-batches, each once. Each task has a transaction; the driver writes the list of them into the checkpoint,
 * and then commits them. Spark runs a micro-batch again until its own log has it as complete:
 *
 * <ol>
 *   <li>there was no list: what the lost run left is aborted, and all is written anew;
 *   <li>there was one: nothing is written, and the transactions of the list are committed, those that are not yet.
 * </ol>
 */
final class ExactlyOnceStream implements StreamingWrite {
    private static final Logger LOG = LoggerFactory.getLogger(ExactlyOnceStream.class);
    private final SinkSettings settings;
    private final String ids;
    private final String own;
    private final SinkLog log;
    /** Whether it may be decided: then only the next run knows what is to be aborted. */
    private boolean deciding;

    /** @param ids what all transactional ids of the query begin with */
    ExactlyOnceStream(SinkSettings settings, String ids, SinkLog log) {
        this.settings = settings;
        this.ids = ids;
        this.log = log;
        own = ids + UUID.randomUUID() + "/";
    }

    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
        KeraWrite.check(settings);
        Patience.unchecked(() -> {
            // In this order: what another driver has prepared it cannot decide to commit any more.
            log.begin();
            abortOthers(ids);
            return true;
        });
        return new TaskWriterFactory(settings, own, log.decided().epoch());
    }

    @Override
    public void commit(long epoch, WriterCommitMessage[] messages) {
        Patience.unchecked(() -> {
            deciding = true;
            if (epoch > log.decided().epoch()) {
                log.decide(new Decision(epoch, SinkTransactions.prepared(messages)));
            } else {
                LOG.info("micro-batch {} was written to stream {} before", epoch, settings.stream());
            }
            try (SinkTransactions transactions = new SinkTransactions(settings)) {
                transactions.commit(log.decided().transactions());
            }
            // Of attempts that were lost when they were prepared.
            abortOthers(own);
            log.settled();
            return true;
        });
    }

    @Override
    public void abort(long epoch, WriterCommitMessage[] messages) {
        if (!deciding) {
            Patience.unchecked(() -> {
                abortOthers(own);
                return true;
            });
        }
    }

    private void abortOthers(String of) throws IOException {
        try (SinkTransactions transactions = new SinkTransactions(settings)) {
            transactions.abortOthers(of, log.decided().transactions());
        }
    }
}
