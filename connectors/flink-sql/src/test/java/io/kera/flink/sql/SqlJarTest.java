package io.kera.flink.sql;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.kera.client.TestBroker;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The jar as users put it into the lib directory: it has all that it needs, and nothing under a name that others use. */
@Timeout(300)
class SqlJarTest {
    @Test
    void theJarReadsAndWritesByItself() throws Exception {
        assertThrows(ClassNotFoundException.class, () -> Class.forName("io.airlift.compress.zstd.ZstdCompressor"));
        try (TestBroker broker = TestBroker.start()) {
            broker.run("", "stream", "create", "orders");
            TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inBatchMode());
            flink.executeSql("CREATE TABLE orders (who STRING, amount INT) WITH ('connector' = 'kera', 'bootstrap' = '"
                    + broker.address() + "', 'stream' = 'orders', 'format' = 'json', 'sink.compression' = 'zstd',"
                    + " 'scan.bounded.mode' = 'latest')");
            flink.executeSql("INSERT INTO orders VALUES ('ann', 3), ('bob', 7)").await();
            List<String> rows = new ArrayList<>();
            try (CloseableIterator<Row> found = flink.executeSql("SELECT who, amount FROM orders").collect()) {
                found.forEachRemaining(row -> rows.add(row.toString()));
            }
            rows.sort(null);
            assertEquals(List.of("+I[ann, 3]", "+I[bob, 7]"), rows);
        }
    }
}
