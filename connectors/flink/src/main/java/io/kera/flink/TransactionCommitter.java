package io.kera.flink;

import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.LoginException;
import io.kera.client.TransactionHandle;
import io.kera.client.Transactions;
import java.io.IOException;
import java.util.Collection;
import org.apache.flink.api.connector.sink2.Committer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Commits the transactions of a checkpoint that has completed. One that was committed before is committed. */
final class TransactionCommitter implements Committer<TransactionHandle> {
    private static final Logger LOG = LoggerFactory.getLogger(TransactionCommitter.class);
    private final Transactions transactions;

    TransactionCommitter(Transactions transactions) {
        this.transactions = transactions;
    }

    @Override
    public void commit(Collection<CommitRequest<TransactionHandle>> requests) throws IOException {
        for (CommitRequest<TransactionHandle> request : requests) {
            TransactionHandle handle = request.getCommittable();
            boolean committed;
            try {
                committed = transactions.commit(handle);
            } catch (LoginException error) {
                throw error;
            } catch (KeraException error) {
                if (error.code() == ErrorCodes.UNKNOWN_TRANSACTION) {
                    throw new IOException("whether the transaction " + handle
                            + " of a completed checkpoint was committed is not remembered any more: the checkpoint is too old,"
                            + " or another job uses the same prefix", error);
                }
                if (!ErrorCodes.isRetryable(error.code())) {
                    throw error;
                }
                later(request, error);
                continue;
            } catch (IOException error) {
                if (Thread.currentThread().isInterrupted()) {
                    throw error;
                }
                later(request, error);
                continue;
            }
            // Outside of the try, whose errors are tried again.
            if (!committed) {
                throw new IOException("records are lost: the transaction " + handle
                        + " of a completed checkpoint was aborted: by somebody else, or by the broker because the"
                        + " checkpoint took longer than transactions.max_prepared");
            }
        }
    }

    private static void later(CommitRequest<TransactionHandle> request, IOException why) {
        LOG.warn("the transaction {} is not committed yet; trying again", request.getCommittable(), why);
        request.retryLater();
    }

    @Override
    public void close() {
        transactions.close();
    }
}
