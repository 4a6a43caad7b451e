package io.kera.flink;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.KeraRecord;
import io.kera.client.LaneReader;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.StreamInfo;
import io.kera.client.TestBroker;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Pattern;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.testframe.TestResource;
import org.apache.flink.connector.testframe.external.ExternalSystemDataReader;
import org.apache.flink.connector.testframe.external.ExternalSystemSplitDataWriter;
import org.apache.flink.connector.testframe.external.sink.DataStreamSinkV2ExternalContext;
import org.apache.flink.connector.testframe.external.sink.TestingSinkSettings;
import org.apache.flink.connector.testframe.external.source.DataStreamSourceExternalContext;
import org.apache.flink.connector.testframe.external.source.TestingSourceSettings;

/** A broker as Flink's own suites want the system that a connector connects to. */
final class KeraSystem implements TestResource {
    private static final AtomicInteger NAMES = new AtomicInteger();
    private TestBroker broker;

    @Override
    public void startUp() throws Exception {
        broker = TestBroker.start();
    }

    @Override
    public void tearDown() throws Exception {
        if (broker != null) {
            broker.close();
        }
    }

    String address() {
        return broker.address();
    }

    private static List<String> lines(long seed) {
        Random dice = new Random(seed);
        List<String> lines = new ArrayList<>();
        for (int n = 20 + dice.nextInt(80); n > 0; n--) {
            lines.add(Long.toHexString(dice.nextLong()) + "-" + n);
        }
        return lines;
    }

    /** One stream for each of Flink's external splits. */
    final class SourceContext implements DataStreamSourceExternalContext<String> {
        private final String prefix = "source-" + NAMES.incrementAndGet() + "-";
        private final AtomicInteger streams = new AtomicInteger();

        @Override
        public Source<String, ?, ?> createSource(TestingSourceSettings settings) {
            KeraSourceBuilder<String> builder = KeraSource.<String>builder()
                    .bootstrap(address())
                    .pattern(Pattern.compile(prefix + "[0-9]+"))
                    .growth(Growth.UNORDERED)
                    .discovery(Duration.ofMillis(500))
                    .deserializer(KeraDeserializer.values(new SimpleStringSchema()));
            if (settings.getBoundedness() == Boundedness.BOUNDED) {
                builder.bounded();
            }
            return builder.build(new Configuration());
        }

        @Override
        public ExternalSystemSplitDataWriter<String> createSourceSplitDataWriter(TestingSourceSettings settings) {
            String stream = prefix + streams.incrementAndGet();
            try {
                try (Admin admin = new Admin(List.of(address()), ConnectOptions.DEFAULT)) {
                    admin.createStream(stream, 1, 1);
                }
                return new Writer(new Producer(stream, ProducerOptions.to(address())));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public List<String> generateTestData(TestingSourceSettings settings, int split, long seed) {
            return lines(seed);
        }

        @Override
        public TypeInformation<String> getProducedType() {
            return TypeInformation.of(String.class);
        }

        @Override
        public List<URL> getConnectorJarPaths() {
            return List.of();
        }

        @Override
        public void close() {}
    }

    private record Writer(Producer producer) implements ExternalSystemSplitDataWriter<String> {
        @Override
        public void writeRecords(List<String> records) {
            try {
                for (String record : records) {
                    producer.append(null, record.getBytes(StandardCharsets.UTF_8));
                }
                producer.flush();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public void close() throws Exception {
            producer.close();
        }
    }

    /** A stream that a sink writes to. */
    final class SinkContext implements DataStreamSinkV2ExternalContext<String> {
        private final String stream = "sink-" + NAMES.incrementAndGet();

        SinkContext() throws IOException {
            try (Admin admin = new Admin(List.of(address()), ConnectOptions.DEFAULT)) {
                admin.createStream(stream, 1, 1);
            }
        }

        @Override
        @SuppressWarnings("deprecation")
        public Sink<String> createSink(TestingSinkSettings settings) {
            return KeraSink.<String>builder()
                    .bootstrap(address())
                    .stream(stream)
                    .serializer(KeraSerializer.values(new SimpleStringSchema()))
                    .guarantee(DeliveryGuarantee.valueOf(settings.getCheckpointingMode().name()))
                    .transactionalIdPrefix(stream)
                    .build();
        }

        @Override
        public ExternalSystemDataReader<String> createSinkDataReader(TestingSinkSettings settings) {
            try (Admin admin = new Admin(List.of(address()), ConnectOptions.DEFAULT)) {
                StreamInfo info = admin.stream(stream);
                return new Reader(new LaneReader(info, 0, 0, 0, LaneReader.UNBOUNDED, ConnectOptions.DEFAULT));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public List<String> generateTestData(TestingSinkSettings settings, long seed) {
            return lines(seed);
        }

        @Override
        public TypeInformation<String> getProducedType() {
            return TypeInformation.of(String.class);
        }

        @Override
        public List<URL> getConnectorJarPaths() {
            return List.of();
        }

        @Override
        public void close() {}
    }

    private record Reader(LaneReader reader) implements ExternalSystemDataReader<String> {
        @Override
        public List<String> poll(Duration wait) {
            try {
                List<String> found = new ArrayList<>();
                for (KeraRecord record : reader.read(1 << 20, Math.toIntExact(wait.toMillis()))) {
                    found.add(new String(record.value(), StandardCharsets.UTF_8));
                }
                return found;
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public void close() throws Exception {
            reader.close();
        }
    }

}
