package io.kera.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/** Makes the readers of ranges on executors. */
record RangeReaderFactory(BrokerAccess access, KeraColumn[] columns, boolean failOnDataLoss)
        implements PartitionReaderFactory {
    private static final long serialVersionUID = 1L;

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
        try {
            return new RangeReader(access, (LaneRange) partition, columns, failOnDataLoss);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
