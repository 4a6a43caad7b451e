package kera;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.processor.StateRestoreListener;

/**
 * Counts words and joins two topics within a window, each result exactly once. Tells on its standard output
 * "state NAME", "restored RECORDS STORE" and "died WHY".
 *
 * <p>Arguments: the brokers, the application's id, the directory of its state, and settings NAME=VALUE.
 */
public final class Streams {
    private static final PrintStream SAYS =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    /** What becomes of a line's words, and of left and right records of a key. */
    private static Topology topology(String application) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(application + "-lines")
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.as("words"))
                .count(Materialized.as("counts"))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(application + "-counted");
        KStream<String, String> left = builder.stream(application + "-left");
        KStream<String, String> right = builder.stream(application + "-right");
        // Partitions are read at their own pace: none comes too late for the window.
        JoinWindows window =
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(500), Duration.ofDays(1));
        left.join(right, (one, other) -> one + "+" + other, window, StreamJoined.as("pairs"))
                .to(application + "-joined");
        return builder.build();
    }

    public static void main(String[] arguments) {
        System.setOut(System.err);
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        // Each word gives a count of its own.
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
        for (String setting : Arrays.asList(arguments).subList(3, arguments.length)) {
            String[] pair = setting.split("=", 2);
            settings.put(pair[0], pair[1]);
        }

        KafkaStreams streams = new KafkaStreams(topology(arguments[1]), settings);
        streams.setStateListener((now, before) -> SAYS.println("state " + now));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            SAYS.println("died " + error);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setGlobalStateRestoreListener(new StateRestoreListener() {
            @Override
            public void onRestoreStart(TopicPartition partition, String store, long from, long to) {}

            @Override
            public void onBatchRestored(TopicPartition partition, String store, long end, long count) {}

            @Override
            public void onRestoreEnd(TopicPartition partition, String store, long total) {
                SAYS.println("restored " + total + " " + store);
            }
        });
        streams.start();
    }

    private Streams() {}
}
