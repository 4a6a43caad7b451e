package io.kera.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;

/**
 * Makes the writers of tasks, on executors.
 *
 * @param ids what transactional ids begin with; empty without transactions. Each attempt of a task has an id of its own
 * @param decided what belongs to this epoch or one before is written by transactions that a run has decided to commit
 */
record TaskWriterFactory(SinkSettings settings, String ids, long decided)
        implements DataWriterFactory, StreamingDataWriterFactory {
    private static final long serialVersionUID = 1L;

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
        return new TaskWriter(settings, ids.isEmpty() ? "" : ids + partition + "/" + task);
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
        return epoch <= decided ? new TaskWriter.Skipped() : createWriter(partition, task);
    }
}
