package io.kera.spark;

import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.TransactionHandle;
import io.kera.client.Transactions;
import io.kera.spark.TaskWriter.Written;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Ends the transactions of a sink's tasks, from the driver. */
final class SinkTransactions implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(SinkTransactions.class);
    private final String stream;
    private final Transactions transactions;

    SinkTransactions(SinkSettings settings) throws IOException {
        stream = settings.stream();
        transactions = new Transactions(settings.access().bootstrap(), settings.access().connect());
    }

    /** Those that tasks have prepared. */
    static List<TransactionHandle> prepared(WriterCommitMessage[] messages) {
        List<TransactionHandle> handles = new ArrayList<>();
        for (WriterCommitMessage message : messages) {
            if (message instanceof Written written && written.transaction() != null) {
                handles.add(TransactionHandle.decoded(written.transaction()));
            }
        }
        return handles;
    }

    /** Commits them all. What was committed before is committed. */
    void commit(List<TransactionHandle> handles) throws IOException {
        for (TransactionHandle handle : handles) {
            boolean committed;
            try {
                committed = Patience.ask("the transaction " + handle + " of stream " + stream + " is not committed yet",
                        () -> transactions.commit(handle));
            } catch (IOException error) {
                if (error.getCause() instanceof KeraException refused && refused.code() == ErrorCodes.UNKNOWN_TRANSACTION) {
                    throw new IOException("whether the transaction " + handle + " of stream " + stream
                            + " was committed is not remembered any more: the query stood still for too long, or others had"
                            + " very many transactions meanwhile; start with a new checkpoint", error);
                }
                throw error;
            }
            if (!committed) {
                throw new IOException("records of stream " + stream + " are lost: somebody else has aborted the transaction "
                        + handle + " of a micro-batch that was decided; start with a new checkpoint");
            }
        }
    }

    /** Aborts whatever else has an id that begins so: attempts of tasks that failed, or were lost. */
    void abortOthers(String ids, List<TransactionHandle> kept) throws IOException {
        Set<TransactionHandle> all = new HashSet<>(kept);
        List<Transactions.Open> open =
                Patience.ask("transactions of " + ids + " that failed are not known yet", () -> transactions.open(ids));
        for (Transactions.Open each : open) {
            if (!all.contains(each.handle())) {
                LOG.info("aborting {} of an attempt that failed", each.handle());
                Patience.ask("the transaction " + each.handle() + " is not aborted yet", () -> {
                    transactions.abortAll(each);
                    return true;
                });
            }
        }
    }

    @Override
    public void close() {
        transactions.close();
    }
}
