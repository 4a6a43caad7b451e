package io.kera.spark;

import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
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
