package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.ReadmePrograms;
import io.kera.client.TestBroker;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.runtime.testutils.MiniClusterResourceConfiguration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.test.junit5.MiniClusterExtension;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.ExceptionUtils;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;

@EnabledIfSystemProperty(named = "kera.program", matches = ".+")
@Timeout(300)
class TablesTest {
    @RegisterExtension
    private static final MiniClusterExtension FLINK = new MiniClusterExtension(new MiniClusterResourceConfiguration.Builder()
            .setNumberTaskManagers(1)
            .setNumberSlotsPerTaskManager(4)
            .build());

    private static TestBroker broker;

    @BeforeAll
    static void start() throws Exception {
        broker = TestBroker.start();
    }

    @AfterAll
    static void stop() throws Exception {
        if (broker != null) {
            broker.close();
        }
    }

    private static void stream(String name, int lanes) throws Exception {
        try (Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream(name, 1, lanes);
        }
    }

    private static List<String> rows(TableResult result) throws Exception {
        List<String> rows = new ArrayList<>();
        try (CloseableIterator<Row> found = result.collect()) {
            found.forEachRemaining(row -> rows.add(row.toString()));
        }
        rows.sort(null);
        return rows;
    }

    private static String table(String name, String stream, String more) {
        return "CREATE TABLE " + name + " WITH ('connector' = 'kera', 'bootstrap' = '" + broker.address()
                + "', 'stream' = '" + stream + "'" + more + ")";
    }

    @Test
    void rowsAreWrittenAndReadWithKeysAndMetadata() throws Exception {
        stream("flights", 2);
        TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
        flink.executeSql(table("flights (plane STRING, speed INT)", "flights",
                ", 'key.format' = 'raw', 'key.fields' = 'plane', 'value.format' = 'json'"));
        flink.executeSql("INSERT INTO flights VALUES ('a', 1), ('b', 2), ('a', 3), ('c', 4)").await();
        String seen = table(
                "seen (plane STRING, speed INT, at_lane INT METADATA FROM 'lane' VIRTUAL,"
                        + " place BIGINT METADATA FROM 'ordinal' VIRTUAL,"
                        + " stream_name STRING METADATA FROM 'stream' VIRTUAL,"
                        + " at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL,"
                        + " headers MAP<STRING, BYTES> METADATA VIRTUAL,"
                        + " WATERMARK FOR at_time AS at_time - INTERVAL '1' SECOND)",
                "flights",
                ", 'key.format' = 'raw', 'key.fields' = 'plane', 'value.format' = 'json', 'scan.bounded.mode' = 'latest'");
        flink.executeSql(seen);
        assertEquals(
                List.of("+I[a, 1, flights]", "+I[a, 3, flights]", "+I[b, 2, flights]", "+I[c, 4, flights]"),
                rows(flink.executeSql("SELECT plane, speed, stream_name FROM seen WHERE at_time > TO_TIMESTAMP_LTZ(0, 3)")));
        TableEnvironment batch = TableEnvironment.create(EnvironmentSettings.inBatchMode());
        batch.executeSql(seen.replace("'scan.bounded.mode'", "'scan.order' = 'none', 'scan.bounded.mode'"));
        assertEquals(
                List.of("+I[a, 2, 1]"),
                rows(batch.executeSql("SELECT plane, COUNT(*), COUNT(DISTINCT at_lane) FROM seen GROUP BY plane"
                        + " HAVING COUNT(*) = 2 AND MAX(place) > 0 AND MAX(CARDINALITY(headers)) = 0")));
        flink.executeSql(table("newest (plane STRING, speed INT)", "flights",
                ", 'key.format' = 'raw', 'key.fields' = 'plane', 'value.format' = 'json', 'scan.bounded.mode' = 'latest',"
                        + " 'scan.startup.mode' = 'latest'"));
        assertEquals(List.of(), rows(flink.executeSql("SELECT * FROM newest")));
    }

    @Test
    void exactlyOnceIsRefusedWithWords() throws Exception {
        stream("once", 1);
        TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
        flink.executeSql(table("once (n INT)", "once", ", 'format' = 'json', 'sink.delivery-guarantee' = 'exactly-once'"));
        Throwable error = assertThrows(Exception.class, () -> flink.executeSql("INSERT INTO once VALUES (1)"));
        assertTrue(ExceptionUtils.findThrowableWithMessage(error, "needs transactions").isPresent(), error.toString());
    }

    @Test
    void aGrownStreamIsRefusedWhereOrderCannotBeKept() throws Exception {
        stream("grown", 1);
        try (Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            broker.run("1\n2\n", "produce", "grown");
            admin.growStream("grown", 2);
            broker.run("3\n", "produce", "grown");
        }
        TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
        String bounded = ", 'format' = 'raw', 'scan.bounded.mode' = 'latest'";
        flink.executeSql(table("grown (n STRING)", "grown", bounded));
        Throwable error = assertThrows(Exception.class, () -> rows(flink.executeSql("SELECT * FROM grown")));
        assertTrue(ExceptionUtils.findThrowableWithMessage(error, "scan.growth = unordered").isPresent(), error.toString());
        flink.executeSql(table("unordered (n STRING)", "grown", bounded + ", 'scan.growth' = 'unordered'"));
        assertEquals(List.of("+I[1]", "+I[2]", "+I[3]"), rows(flink.executeSql("SELECT * FROM unordered")));
    }

    @Test
    void theProgramsOfTheReadmeDoWhatItSays(@TempDir Path home) throws Exception {
        stream("orders", 2);
        TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
        List<String> statements = new ArrayList<>();
        for (String block : ReadmePrograms.blocks("sql", broker.address())) {
            for (String statement : block.split(";")) {
                if (!statement.isBlank()) {
                    statements.add(statement.strip());
                }
            }
        }
        assertEquals(4, statements.size());
        flink.executeSql(statements.get(0));
        flink.executeSql(statements.get(1)).await();
        flink.executeSql(statements.get(2));
        List<String> sums = rows(flink.executeSql(statements.get(3)));
        assertTrue(sums.contains("+I[bob, 7]") && sums.contains("+U[ann, 8]"), sums.toString());
        List<String> programs = ReadmePrograms.blocks("java", broker.address());
        assertEquals(1, programs.size());
        String told = ReadmePrograms.run(programs.get(0), home);
        assertTrue(told.contains("{\"amount\":3}"), told);
    }
}
