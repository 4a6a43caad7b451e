package io.kera.flink;

import io.kera.client.Compression;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.connector.base.DeliveryGuarantee;

/**
 * Writes to a stream, at least once: a checkpoint completes only when everything before it is acknowledged. After a
 * failure the job writes again what came after its last checkpoint.
 */
public final class KeraSink<T> implements Sink<T> {
    private static final long serialVersionUID = 1L;
    private final List<String> bootstrap;
    private final String stream;
    private final KeraSerializer<T> serializer;
    private final Compression compression;
    private final Duration linger;
    private final Connecting connection;

    private KeraSink(Builder<T> builder) {
        bootstrap = builder.bootstrap;
        stream = builder.stream;
        serializer = builder.serializer;
        compression = builder.compression;
        linger = builder.linger;
        connection = builder.connection();
    }

    /** A sink to be. */
    public static <T> Builder<T> builder() {
        return new Builder<>();
    }

    @Override
    public SinkWriter<T> createWriter(WriterInitContext context) throws IOException {
        try {
            serializer.open(context.asSerializationSchemaInitializationContext());
        } catch (IOException | RuntimeException error) {
            throw error;
        } catch (Exception error) {
            throw new IOException("the serializer cannot be opened: " + error.getMessage(), error);
        }
        ProducerOptions options = ProducerOptions.to(bootstrap.toArray(new String[0]))
                .withConnect(connection.options())
                .withCompression(compression)
                .withLinger(linger);
        return new Writer<>(new Producer(stream, options), serializer, context);
    }

    private static final class Writer<T> implements SinkWriter<T> {
        private final Producer producer;
        private final KeraSerializer<T> serializer;
        private final WriterInitContext context;

        Writer(Producer producer, KeraSerializer<T> serializer, WriterInitContext context) {
            this.producer = producer;
            this.serializer = serializer;
            this.context = context;
        }

        @Override
        public void write(T element, Context of) throws IOException {
            // What was given up meanwhile fails the job now, and not at the next checkpoint.
            producer.checkFailures();
            byte[] key = serializer.key(element);
            byte[] value = serializer.value(element);
            producer.append(key, value, serializer.headers(element), serializer.timestamp(element, of.timestamp()));
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
        public void close() throws IOException {
            producer.close();
        }
    }

    /** Settings of a {@link KeraSink}. */
    public static final class Builder<T> extends KeraConnectionBuilder<Builder<T>> {
        private String stream;
        private KeraSerializer<T> serializer;
        private Compression compression = Compression.NONE;
        private Duration linger = Duration.ofMillis(5);

        private Builder() {}

        @Override
        Builder<T> self() {
            return this;
        }

        /** The stream to write to. Required. */
        public Builder<T> stream(String name) {
            stream = name;
            return this;
        }

        /** What values become. Required. */
        public Builder<T> serializer(KeraSerializer<T> wanted) {
            serializer = wanted;
            return this;
        }

        /** How batches are compressed. Default: not at all. */
        public Builder<T> compression(Compression wanted) {
            compression = Objects.requireNonNull(wanted);
            return this;
        }

        /** How long a batch waits for more records. Default 5 ms. */
        public Builder<T> linger(Duration wanted) {
            linger = Objects.requireNonNull(wanted);
            return this;
        }

        /**
         * What a failure may cost. Only at least once is possible.
         *
         * @throws IllegalArgumentException for any other
         */
        public Builder<T> guarantee(DeliveryGuarantee wanted) {
            KeraSink.check(wanted);
            return this;
        }

        /** The sink. */
        public KeraSink<T> build() {
            if (stream == null || serializer == null) {
                throw new IllegalArgumentException("name the stream to write to, and say by a serializer what values become");
            }
            return new KeraSink<>(this);
        }
    }

    static void check(DeliveryGuarantee wanted) {
        if (wanted == DeliveryGuarantee.EXACTLY_ONCE) {
            throw new IllegalArgumentException(
                    "exactly-once needs transactions, which this version does not have; choose at-least-once");
        }
        if (wanted == DeliveryGuarantee.NONE) {
            throw new IllegalArgumentException("a checkpoint always waits for acknowledgements; choose at-least-once");
        }
    }
}
