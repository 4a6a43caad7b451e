package io.kera.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.ReadmePrograms;
import io.kera.client.TestBroker;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** The programs of the README do what it says. */
@Timeout(240)
class ReadmeTest {
    @Test
    void theProgramsRunAsPrinted(@TempDir Path home) throws Exception {
        try (TestBroker broker = TestBroker.start()) {
            broker.run("", "stream", "create", "orders");
            try (Producer producer = new Producer("orders", ProducerOptions.to(broker.address()))) {
                for (String order : List.of("ann 3", "bob 7", "ann 5")) {
                    String[] words = order.split(" ");
                    producer.append(words[0].getBytes(StandardCharsets.UTF_8), words[1].getBytes(StandardCharsets.UTF_8));
                }
            }
            List<String> sql = ReadmePrograms.blocks("sql", broker.address());
            assertEquals(1, sql.size());
            assertEquals(List.of("[ann,8]", "[bob,7]"), run(sql.get(0)));
            List<String> java = ReadmePrograms.blocks("java", broker.address());
            assertEquals(3, java.size());
            assertEquals("[ann,3,0]\n[bob,7,1]\n[ann,5,2]\n", ReadmePrograms.run(java.get(0), home));
            assertEquals("[ann,3]\n[ann,5]\n[bob,7]\n", ReadmePrograms.run(java.get(1), home));
            broker.run("", "stream", "create", "copies");
            ReadmePrograms.run(java.get(2), home);
            Dataset<Row> copies = TestSpark.session().read().format("kera").option("bootstrap", broker.address())
                    .option("stream", "copies").load();
            // The marker follows the decision.
            for (int n = 0; n < 500 && copies.count() < 4; n++) {
                Thread.sleep(10);
            }
            assertEquals(List.of(3, 4, 5, 7), TestSpark.values(copies));
        }
    }

    /** Runs the statements of a block; the rows of the last one. */
    private static List<String> run(String block) {
        SparkSession spark = TestSpark.session();
        List<String> rows = new ArrayList<>();
        for (String statement : block.split(";\n")) {
            if (!statement.isBlank()) {
                rows.clear();
                for (Row row : spark.sql(statement).collectAsList()) {
                    rows.add(row.toString());
                }
            }
        }
        return rows;
    }
}
