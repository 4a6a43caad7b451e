package io.kera.flink;

import io.kera.client.KeraRecord;
import java.util.List;
import org.apache.flink.metrics.Counter;
import org.apache.flink.metrics.groups.SourceReaderMetricGroup;

/** What a reader tells of itself: bytes that it has read, and how many records wait for it. */
final class ReadMetrics {
    private final Counter bytes;
    private final Counter replicaBytes;
    private volatile long behind;
    /** Where no order is asked for: its share of what is in no reader's range. */
    private volatile long waiting;

    ReadMetrics(SourceReaderMetricGroup group) {
        bytes = group.getIOMetricGroup().getNumBytesInCounter();
        replicaBytes = group.counter("numReplicaBytesIn");
        group.setPendingRecordsGauge(() -> behind + waiting);
    }

    void read(List<KeraRecord> records) {
        long sum = 0;
        for (KeraRecord record : records) {
            sum += length(record.key()) + length(record.value());
        }
        bytes.inc(sum);
    }

    /** So many bytes of batches came from replicas in the reader's rack. */
    void readNear(long read) {
        replicaBytes.inc(read);
    }

    private static int length(byte[] bytes) {
        return bytes == null ? 0 : bytes.length;
    }

    /** So many records wait for any reader, and are its share of them all. */
    void waiting(long records) {
        waiting = records;
    }

    /** So many records wait in the reader's lanes, as far as they were read. */
    void behind(long records) {
        behind = records;
    }
}
