package io.kera.flink;

import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.TransactionHandle;
import io.kera.client.Transactions;
import java.io.IOException;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Writes records exactly once: those between two checkpoints are one transaction, which is prepared at the second one and
 * committed once that has completed.
 *
 * <p>The transactional id is {@code prefix/subtask/label}. The label is the number of the last checkpoint that this writer
 * was part of, plus one: what is in checkpoint n has a label of at most n, and belongs to the committer. What has a higher
 * one when a job is restored from n is of an attempt that failed, and is aborted by the subtask that has the id's subtask
 * now.
 */
final class TransactionalWriter<T> extends KeraSinkWriter<T> {
    private static final Logger LOG = LoggerFactory.getLogger(TransactionalWriter.class);

    private final String stream;
    private final ProducerOptions options;
    private final String prefix;
    private final int subtask;
    private long label;

    /**
     * @param transactions to abort what failed attempts left
     * @param former prefixes that the job had before
     * @param abortFormer whether nobody uses these any more
     */
    TransactionalWriter(String stream, ProducerOptions options, String prefix, Collection<String> former,
            boolean abortFormer, Transactions transactions, KeraSerializer<T> serializer, WriterInitContext context) throws IOException {
        super(null, serializer, context);
        this.stream = stream;
        this.options = options;
        this.prefix = prefix;
        subtask = context.getTaskInfo().getIndexOfThisSubtask();
        long restored = context.getRestoredCheckpointId().orElse(0);
        label = restored + 1;
        Set<String> prefixes = new LinkedHashSet<>(former);
        prefixes.add(prefix);
        int subtasks = context.getTaskInfo().getNumberOfParallelSubtasks();
        for (String each : prefixes) {
            for (Transactions.Open open : transactions.open(each + "/")) {
                if (isLeft(open.handle().transactionalId().substring(each.length() + 1), subtasks, restored)) {
                    if (!each.equals(prefix) && !abortFormer) {
                        throw new IOException(inUse(open, each));
                    }
                    LOG.info("aborting {} of an attempt that failed", open.handle());
                    transactions.abortAll(open);
                }
            }
        }
    }

    private String inUse(Transactions.Open open, String former) {
        return "the transaction " + open.handle() + " is " + (open.prepared() ? "prepared" : "open") + " and began after the"
                + " state from which this job starts, under the prefix " + former + " of the job that wrote the state. If that"
                + " job still runs, its records would be lost: stop it with a savepoint, and start from that one. If it is"
                + " gone, set abortFormer, for a table sink.abort-former = true";
    }

    /** Whether what follows the prefix is of a failed attempt, and this subtask's to abort. */
    private boolean isLeft(String rest, int subtasks, long restored) {
        String[] parts = rest.split("/", -1);
        try {
            return parts.length == 2
                    && Integer.parseInt(parts[0]) % subtasks == subtask
                    && Long.parseLong(parts[1]) > restored;
        } catch (NumberFormatException error) {
            // Another sink's, whose prefix begins so.
            return false;
        }
    }

    @Override
    Producer producer() throws IOException {
        if (producer == null) {
            producer = new Producer(stream, options.withTransactionalId(prefix + "/" + subtask + "/" + label));
            producer.beginTransaction();
        }
        return producer;
    }

    @Override
    public void flush(boolean endOfInput) throws IOException {
        if (producer != null) {
            producer.flush();
        }
    }

    @Override
    public Collection<TransactionHandle> prepareCommit() throws IOException {
        if (producer == null) {
            return List.of();
        }
        TransactionHandle handle;
        try {
            handle = producer.prepareTransaction();
        } catch (KeraException error) {
            if (error.code() == ErrorCodes.TRANSACTION_NOT_OPEN || error.code() == ErrorCodes.FENCED_PRODUCER) {
                throw new IOException(tooLate(), error);
            }
            throw error;
        }
        producer.close();
        producer = null;
        return handle == null ? List.of() : List.of(handle);
    }

    private String tooLate() {
        return "the transaction " + prefix + "/" + subtask + "/" + label + " was aborted before the checkpoint that has its"
                + " records: it was open for longer than the transaction timeout of " + options.transactionTimeout().toSeconds()
                + " s, or somebody has ended it. The records are written again from the last checkpoint on; take checkpoints"
                + " more often, or raise the timeout, for a table sink.transaction-timeout";
    }

    @Override
    public List<String> snapshotState(long checkpoint) {
        label = checkpoint + 1;
        return List.of(prefix);
    }
}
