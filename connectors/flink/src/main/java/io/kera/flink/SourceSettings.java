package io.kera.flink;

import io.kera.client.ConnectOptions;
import io.kera.client.Tls;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import javax.net.ssl.SSLContext;

/**
 * What a source is told.
 *
 * @param bootstrap addresses of brokers, HOST:PORT
 * @param streams their names; empty if there is a pattern
 * @param pattern what the names of streams match; null: there are names
 * @param growth what happens where lanes grow
 * @param noOrder why {@link Growth#REFUSED}, if the job cannot keep order
 * @param discoveryMillis how often it looks whether lanes have grown
 * @param onDataLossFail whether a job fails whose next record was deleted; otherwise it goes on at the earliest one
 * @param group consumer group that shows where the job stands; null: none
 * @param connection how to connect
 */
record SourceSettings(
        List<String> bootstrap,
        List<String> streams,
        String pattern,
        Order order,
        Start start,
        boolean bounded,
        Growth growth,
        String noOrder,
        long discoveryMillis,
        boolean onDataLossFail,
        String group,
        Connecting connection)
        implements Serializable {
    private static final long serialVersionUID = 1L;

    /** Timeout and the files of TLS; null files are none. */
    record Connecting(long timeoutMillis, String ca, String certificate, String key) implements Serializable {
        private static final long serialVersionUID = 1L;
        static final Connecting PLAIN = new Connecting(Duration.ofSeconds(10).toMillis(), null, null, null);

        ConnectOptions options() throws IOException {
            SSLContext tls = null;
            if (ca != null) {
                tls = certificate == null
                        ? Tls.trusting(Path.of(ca))
                        : Tls.withCertificate(Path.of(ca), Path.of(certificate), Path.of(key));
            }
            return new ConnectOptions(Math.toIntExact(timeoutMillis), tls);
        }
    }
}
