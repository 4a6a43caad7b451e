package io.kera.flink;

import io.kera.client.Producer;
import io.kera.client.TransactionHandle;
import java.io.IOException;
import java.util.Collection;
import java.util.List;
import org.apache.flink.api.connector.sink2.CommittingSinkWriter;
import org.apache.flink.api.connector.sink2.StatefulSinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;

/** Writes records at least once: a checkpoint waits until all before it are acknowledged. */
class KeraSinkWriter<T> implements StatefulSinkWriter<T, String>, CommittingSinkWriter<T, TransactionHandle> {
    private final KeraSerializer<T> serializer;
    private final WriterInitContext context;
    /** Null where {@link #producer} makes one when it is needed. */
    Producer producer;

    KeraSinkWriter(Producer producer, KeraSerializer<T> serializer, WriterInitContext context) {
        this.producer = producer;
        this.serializer = serializer;
        this.context = context;
    }

    /** The producer of the next record. */
    Producer producer() throws IOException {
        return producer;
    }

    @Override
    public final void write(T element, Context of) throws IOException {
        Producer to = producer();
        // What was given up meanwhile fails the job now, and not at the next checkpoint.
        to.checkFailures();
        byte[] key = serializer.key(element);
        byte[] value = serializer.value(element);
        to.append(key, value, serializer.headers(element), serializer.timestamp(element, of.timestamp()));
        context.metricGroup().getNumRecordsSendCounter().inc();
        context.metricGroup().getNumBytesSendCounter().inc(length(key) + length(value));
    }

    private static int length(byte[] bytes) {
        return bytes == null ? 0 : bytes.length;
    }

    @Override
    public void flush(boolean endOfInput) throws IOException {
        producer.flush();
    }

    @Override
    public Collection<TransactionHandle> prepareCommit() throws IOException {
        return List.of();
    }

    @Override
    public List<String> snapshotState(long checkpoint) {
        return List.of();
    }

    @Override
    public void close() throws IOException {
        if (producer != null) {
            producer.close();
        }
    }
}
