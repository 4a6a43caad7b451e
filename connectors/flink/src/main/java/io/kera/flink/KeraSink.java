package io.kera.flink;

import io.kera.client.Compression;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.TransactionHandle;
import io.kera.client.Transactions;
import java.io.IOException;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Objects;
import org.apache.flink.api.connector.sink2.Committer;
import org.apache.flink.api.connector.sink2.CommitterInitContext;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.StatefulSinkWriter;
import org.apache.flink.api.connector.sink2.SupportsCommitter;
import org.apache.flink.api.connector.sink2.SupportsWriterState;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/**
 * Writes to a stream. At least once: a checkpoint completes only when everything before it is acknowledged, and after a
 * failure the job writes again what came after its last checkpoint. Or {@linkplain Builder#guarantee exactly once}: readers
 * see what is between two checkpoints once the second one has completed, all of it, and once.
 */
public final class KeraSink<T>
        implements Sink<T>, SupportsWriterState<T, String>, SupportsCommitter<TransactionHandle> {
    private static final long serialVersionUID = 1L;
    private final List<String> bootstrap;
    private final String stream;
    private final KeraSerializer<T> serializer;
    private final Compression compression;
    private final Duration linger;
    private final Connecting connection;
    /** Of transactional ids; null without transactions. */
    private final String prefix;
    private final Duration transactionTimeout;
    private final boolean abortFormer;

    private KeraSink(Builder<T> builder) {
        bootstrap = builder.bootstrap;
        stream = builder.stream;
        serializer = builder.serializer;
        compression = builder.compression;
        linger = builder.linger;
        connection = builder.connection();
        prefix = builder.guarantee == DeliveryGuarantee.EXACTLY_ONCE ? builder.prefix : null;
        transactionTimeout = builder.transactionTimeout;
        abortFormer = builder.abortFormer;
    }

    /** A sink to be. */
    public static <T> Builder<T> builder() {
        return new Builder<>();
    }

    @Override
    public SinkWriter<T> createWriter(WriterInitContext context) throws IOException {
        return restoreWriter(context, List.of());
    }

    @Override
    public StatefulSinkWriter<T, String> restoreWriter(WriterInitContext context, Collection<String> prefixes)
            throws IOException {
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
        if (prefix == null) {
            return new KeraSinkWriter<>(new Producer(stream, options), serializer, context);
        }
        options = options.withTransactionTimeout(transactionTimeout);
        try (Transactions transactions = transactions()) {
            return new TransactionalWriter<>(
                    stream, options, prefix, prefixes, abortFormer, transactions, serializer, context);
        }
    }

    private Transactions transactions() throws IOException {
        return new Transactions(bootstrap, connection.options());
    }

    @Override
    public Committer<TransactionHandle> createCommitter(CommitterInitContext context) throws IOException {
        return new TransactionCommitter(transactions());
    }

    @Override
    public SimpleVersionedSerializer<TransactionHandle> getCommittableSerializer() {
        return new TransactionHandleSerializer();
    }

    @Override
    public SimpleVersionedSerializer<String> getWriterStateSerializer() {
        return new PrefixSerializer();
    }

    /** Settings of a {@link KeraSink}. */
    public static final class Builder<T> extends KeraConnectionBuilder<Builder<T>> {
        private String stream;
        private KeraSerializer<T> serializer;
        private Compression compression = Compression.NONE;
        private Duration linger = Duration.ofMillis(5);
        private DeliveryGuarantee guarantee = DeliveryGuarantee.AT_LEAST_ONCE;
        private String prefix;
        private Duration transactionTimeout = Duration.ofMinutes(15);
        private boolean abortFormer;

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
         * What a failure may cost. Default: records may be written again. For {@code EXACTLY_ONCE} the job needs
         * checkpoints, and the sink a {@linkplain #transactionalIdPrefix prefix}.
         *
         * @throws IllegalArgumentException for {@code NONE}
         */
        public Builder<T> guarantee(DeliveryGuarantee wanted) {
            if (wanted == DeliveryGuarantee.NONE) {
                throw new IllegalArgumentException(
                        "a checkpoint always waits for acknowledgements; choose at-least-once");
            }
            guarantee = Objects.requireNonNull(wanted);
            return this;
        }

        /**
         * What transactional ids begin with. Each sink of each job needs one of its own, and keeps it over restarts: what
         * failed attempts left is found by it, and aborted.
         */
        public Builder<T> transactionalIdPrefix(String wanted) {
            prefix = Objects.requireNonNull(wanted);
            return this;
        }

        /**
         * After which time brokers abort a transaction that no checkpoint has prepared. Longer than checkpoints are apart
         * and take; default 15 minutes, at most {@code transactions.max_timeout} of the brokers.
         */
        public Builder<T> transactionTimeout(Duration wanted) {
            transactionTimeout = Objects.requireNonNull(wanted);
            return this;
        }

        /**
         * Has a job that starts from another one's state abort what that one wrote since, under its own prefix. Only where
         * the other one is gone: if it runs, its records are lost. Without this, a job that finds such transactions fails.
         */
        public Builder<T> abortFormer() {
            abortFormer = true;
            return this;
        }

        /** The sink. */
        public KeraSink<T> build() {
            if (stream == null || serializer == null) {
                throw new IllegalArgumentException("name the stream to write to, and say by a serializer what values become");
            }
            if (guarantee == DeliveryGuarantee.EXACTLY_ONCE && (prefix == null || prefix.isEmpty())) {
                throw new IllegalArgumentException(
                        "exactly-once needs a prefix of transactional ids that no other sink has: set transactionalIdPrefix, for a"
                                + " table sink.transactional-id-prefix");
            }
            return new KeraSink<>(this);
        }
    }
}
