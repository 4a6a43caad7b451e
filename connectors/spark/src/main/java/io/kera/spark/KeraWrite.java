package io.kera.spark;

import io.kera.client.Admin;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/** Appends rows to a stream: those of a query, or of micro-batch after micro-batch. At least once, or exactly once. */
final class KeraWrite implements Write {
    private final KeraOptions options;
    private final String query;
    private final SinkSettings settings;

    private KeraWrite(KeraOptions options, LogicalWriteInfo info) {
        this.options = options;
        query = info.queryId();
        settings = options.sink(info.schema());
    }

    /** What an aggregation has updated is appended. */
    static final class Builder implements SupportsStreamingUpdateAsAppend {
        private final KeraOptions options;
        private final LogicalWriteInfo info;

        Builder(KeraOptions options, LogicalWriteInfo info) {
            this.options = options;
            this.info = info;
        }

        @Override
        public Write build() {
            return new KeraWrite(options, info);
        }
    }

    @Override
    public String description() {
        return "kera " + settings.stream();
    }

    @Override
    public BatchWrite toBatch() {
        if (!options.exactlyOnce()) {
            return new Acknowledged(settings);
        }
        return new ExactlyOnceBatch(settings, options.transactionalIds("batch"));
    }

    @Override
    public StreamingWrite toStreaming() {
        if (!options.exactlyOnce()) {
            return new Acknowledged(settings);
        }
        return new ExactlyOnceStream(settings, options.transactionalIds(query), new SinkLog(options.sinkFolder(query)));
    }

    /** The stream is there: said on the driver, before tasks begin. */
    static void check(SinkSettings settings) {
        Patience.unchecked(() -> Patience.ask("stream " + settings.stream() + " cannot be written to", () -> {
            try (Admin admin = settings.access().admin()) {
                return admin.stream(settings.stream());
            }
        }));
    }

    /** At least once: a task ends when all that it wrote is acknowledged. */
    private record Acknowledged(SinkSettings settings) implements BatchWrite, StreamingWrite {
        private TaskWriterFactory factory() {
            check(settings);
            return new TaskWriterFactory(settings, "", -1);
        }

        @Override
        public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
            return factory();
        }

        @Override
        public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
            return factory();
        }

        @Override
        public boolean useCommitCoordinator() {
            return false;
        }

        @Override
        public void commit(WriterCommitMessage[] messages) {}

        @Override
        public void commit(long epoch, WriterCommitMessage[] messages) {}

        @Override
        public void abort(WriterCommitMessage[] messages) {}

        @Override
        public void abort(long epoch, WriterCommitMessage[] messages) {}
    }
}
