package io.kera.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/** The Spark of the tests, in their process, and what they write and read with it. */
final class TestSpark {
    private static SparkSession session;

    private TestSpark() {}

    /** One for all tests. */
    static synchronized SparkSession session() {
        if (session == null) {
            session = start();
        }
        return session;
    }

    private static SparkSession start() {
        String files;
        try {
            files = Files.createTempDirectory("kera-spark-test").toString();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return SparkSession.builder()
                .master("local[2]")
                .appName("kera")
                .config("spark.ui.enabled", false)
                .config("spark.sql.shuffle.partitions", 2)
                .config("spark.sql.warehouse.dir", files)
                .config("spark.sql.catalogImplementation", "in-memory")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.driver.bindAddress", "127.0.0.1")
                .getOrCreate();
    }

    /** Numbers as records of a stream, with themselves as keys; small batches. */
    static void produce(String address, String stream, int from, int to) throws IOException {
        try (Producer producer = new Producer(stream, ProducerOptions.to(address).withBatchSize(1 << 10))) {
            for (int n = from; n < to; n++) {
                byte[] text = String.valueOf(n).getBytes(StandardCharsets.UTF_8);
                producer.append(text, text);
            }
        }
    }

    /** Numbers as records whose keys have many of them each. */
    static void produceKeyed(String address, String stream, int from, int to) throws IOException {
        try (Producer producer = new Producer(stream, ProducerOptions.to(address).withBatchSize(1 << 10))) {
            for (int n = from; n < to; n++) {
                producer.append(bytes("key " + n % 20), bytes(String.valueOf(n)));
            }
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Waits until stream t has the numbers below {@code records}, in order for each key, and each once. */
    static void hasEachOnce(String address, int records) throws InterruptedException {
        Dataset<Row> stored = session().read().format("kera").option("bootstrap", address).option("stream", "t").load();
        // The markers follow the decision.
        for (int n = 0; n < 500 && stored.count() < records; n++) {
            Thread.sleep(10);
        }
        Map<String, Integer> keys = new HashMap<>();
        List<Integer> found = new ArrayList<>();
        for (Row row : stored.selectExpr("cast(key as string)", "cast(value as string)", "streamlet", "lane", "ordinal")
                .orderBy("streamlet", "lane", "ordinal").collectAsList()) {
            int value = Integer.parseInt(row.getString(1));
            Integer before = keys.put(row.getString(0), value);
            assertTrue(before == null || before < value, row + " comes after " + before);
            found.add(value);
        }
        found.sort(null);
        assertEquals(numbers(0, records), found);
    }

    /** The values, as numbers, sorted. */
    static List<Integer> values(Dataset<Row> records) {
        List<Integer> values = new ArrayList<>();
        records.selectExpr("cast(value as string)").collectAsList()
                .forEach(row -> values.add(Integer.parseInt(row.getString(0))));
        values.sort(null);
        return values;
    }

    static List<Integer> numbers(int from, int to) {
        return IntStream.range(from, to).boxed().toList();
    }
}
