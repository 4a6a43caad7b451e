package io.kera.spark;

import io.kera.client.Producer;
import io.kera.client.TransactionHandle;
import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * Writes the rows of a task. It ends when all are acknowledged; those of a transaction are prepared then, and count once the
 * driver commits them.
 */
final class TaskWriter implements DataWriter<InternalRow> {
    private final SinkSettings settings;
    /** Empty without transactions. */
    private final String id;
    /** Null until there is a row. */
    private Producer producer;

    /**
     * What the driver is told.
     *
     * @param transaction the handle of the transaction that is prepared; null if there is none
     */
    record Written(byte[] transaction) implements WriterCommitMessage {
        private static final long serialVersionUID = 1L;
    }

    TaskWriter(SinkSettings settings, String id) {
        this.settings = settings;
        this.id = id;
    }

    @Override
    public void write(InternalRow row) throws IOException {
        if (producer == null) {
            producer = settings.producer(id);
            if (!id.isEmpty()) {
                producer.beginTransaction();
            }
        }
        // What was given up meanwhile fails the task now, and not at its end.
        producer.checkFailures();
        SinkColumns columns = settings.columns();
        producer.append(columns.key(row), columns.value(row), columns.headers(row), columns.timestamp(row));
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
        if (producer == null) {
            return new Written(null);
        }
        try {
            if (id.isEmpty()) {
                producer.flush();
                return new Written(null);
            }
            TransactionHandle handle = producer.prepareTransaction();
            return new Written(handle == null ? null : handle.encoded());
        } catch (IOException error) {
            throw new IOException("rows cannot be written to stream " + settings.stream() + ": " + error.getMessage(), error);
        }
    }

    @Override
    public void abort() throws IOException {
        close();
    }

    /** A transaction that is not prepared is aborted. */
    @Override
    public void close() throws IOException {
        if (producer != null) {
            Producer last = producer;
            producer = null;
            last.close();
        }
    }

    /** Takes rows that an earlier run has written, and writes none. */
    static final class Skipped implements DataWriter<InternalRow> {
        @Override
        public void write(InternalRow row) {}

        @Override
        public WriterCommitMessage commit() {
            return new Written(null);
        }

        @Override
        public void abort() {}

        @Override
        public void close() {}
    }
}
