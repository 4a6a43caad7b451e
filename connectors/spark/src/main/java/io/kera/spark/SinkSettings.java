package io.kera.spark;

import io.kera.client.Compression;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import java.io.IOException;
import java.io.Serializable;
import java.time.Duration;

/** How tasks write: the same for all of a query. */
record SinkSettings(
        BrokerAccess access,
        String stream,
        SinkColumns columns,
        Compression compression,
        Duration linger,
        Duration transactionTimeout) implements Serializable {
    private static final long serialVersionUID = 1L;
    /** As long as a task that reads asks again. */
    private static final Duration DEADLINE = Duration.ofMinutes(2);

    /** @param id the transactional id; empty without transactions */
    Producer producer(String id) throws IOException {
        ProducerOptions options = ProducerOptions.to(access.bootstrap().toArray(new String[0]))
                .withConnect(access.connect())
                .withCompression(compression)
                .withDeadline(DEADLINE)
                .withLinger(linger);
        ProducerOptions with = id.isEmpty()
                ? options
                : options.withTransactionalId(id).withTransactionTimeout(transactionTimeout);
        return Patience.ask("stream " + stream + " cannot be written to", () -> new Producer(stream, with));
    }
}
