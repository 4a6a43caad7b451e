package io.kera.spark;

import io.kera.client.TransactionHandle;
import java.util.List;
import java.util.UUID;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * Appends the rows of a query: each once, or none. Each task has a transaction, and the driver commits them when all are
 * prepared. Nobody runs a batch again whose driver is gone: what it left is aborted by the next one with its prefix.
 */
final class ExactlyOnceBatch implements BatchWrite {
    private final SinkSettings settings;
    private final String ids;
    private final String own;

    /** @param ids what the transactional ids of all batches with this prefix begin with */
    ExactlyOnceBatch(SinkSettings settings, String ids) {
        this.settings = settings;
        this.ids = ids;
        own = ids + UUID.randomUUID() + "/";
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
        KeraWrite.check(settings);
        abortOthers(ids, List.of());
        return new TaskWriterFactory(settings, own, -1);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
        List<TransactionHandle> handles = SinkTransactions.prepared(messages);
        Patience.unchecked(() -> {
            try (SinkTransactions transactions = new SinkTransactions(settings)) {
                transactions.commit(handles);
                return true;
            }
        });
        abortOthers(own, handles);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
        abortOthers(own, List.of());
    }

    private void abortOthers(String of, List<TransactionHandle> kept) {
        Patience.unchecked(() -> {
            try (SinkTransactions transactions = new SinkTransactions(settings)) {
                transactions.abortOthers(of, kept);
                return true;
            }
        });
    }
}
