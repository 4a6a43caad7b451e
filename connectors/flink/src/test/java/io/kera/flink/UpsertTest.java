package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.KeraRecord;
import io.kera.client.LaneReader;
import io.kera.client.StreamInfo;
import io.kera.client.TestBroker;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.runtime.testutils.MiniClusterResourceConfiguration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.test.junit5.MiniClusterExtension;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.ExceptionUtils;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.function.Executable;

/** Tables whose records are the newest rows of their keys. */
@EnabledIfSystemProperty(named = "kera.program", matches = ".+")
@Timeout(300)
class UpsertTest {
    @RegisterExtension
    private static final MiniClusterExtension FLINK = new MiniClusterExtension(new MiniClusterResourceConfiguration.Builder()
            .setNumberTaskManagers(1)
            .setNumberSlotsPerTaskManager(4)
            .build());

    private static final String COLUMNS = "(who STRING, amount BIGINT, PRIMARY KEY (who) NOT ENFORCED)";
    private static final String FORMATS = ", 'key.format' = 'json', 'value.format' = 'json'";
    private static TestBroker broker;
    private static Admin admin;
    private final TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inStreamingMode());

    @BeforeAll
    static void start() throws Exception {
        broker = TestBroker.start();
        admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
    }

    @AfterAll
    static void stop() throws Exception {
        if (broker != null) {
            admin.close();
            broker.close();
        }
    }

    private void table(String name, String connector, String columns, String options) {
        flink.executeSql("CREATE TABLE " + name + " " + columns + " WITH ('connector' = '" + connector + "', 'bootstrap' = '"
                + broker.address() + "', 'stream' = '" + name + "', 'scan.bounded.mode' = 'latest'" + options + ")");
    }

    /** What a query leaves once all its changes are done. */
    private Map<String, Object> newest(String query) throws Exception {
        Map<String, Object> rows = new TreeMap<>();
        try (CloseableIterator<Row> changes = flink.executeSql(query).collect()) {
            changes.forEachRemaining(row -> {
                if (row.getKind() == RowKind.DELETE || row.getKind() == RowKind.UPDATE_BEFORE) {
                    rows.remove((String) row.getField(0), row.getField(1));
                } else {
                    rows.put((String) row.getField(0), row.getField(1));
                }
            });
        }
        return rows;
    }

    /** Each record of a stream as key and value. */
    private static List<String> stored(String name) throws Exception {
        List<String> stored = new ArrayList<>();
        StreamInfo stream = admin.stream(name);
        for (Admin.LaneBounds lane : admin.bounds(name)) {
            try (LaneReader reader = new LaneReader(
                    stream, lane.streamlet(), lane.lane(), lane.start(), lane.head(), ConnectOptions.DEFAULT)) {
                while (!reader.finished()) {
                    for (KeraRecord record : reader.read(1 << 20, 1_000)) {
                        String value = record.value() == null ? "-" : new String(record.value(), StandardCharsets.UTF_8);
                        stored.add(new String(record.key(), StandardCharsets.UTF_8) + " " + value);
                    }
                }
            }
        }
        return stored;
    }

    private static void ordered(Object... orders) throws Exception {
        StringBuilder lines = new StringBuilder();
        for (int n = 0; n < orders.length; n += 2) {
            lines.append("{\"who\":\"").append(orders[n]).append("\",\"amount\":").append(orders[n + 1]).append("}\n");
        }
        broker.run(lines.toString(), "produce", "orders");
    }

    @Test
    void rowsTakeThePlaceOfThoseWithTheirKeyAndDeletionsAreRecordsWithoutValue() throws Exception {
        admin.createStream("orders", 1, 1);
        admin.createCompactedStream("balances", 1, 2);
        table("orders", "kera", "(who STRING, amount BIGINT)", ", 'format' = 'json'");
        table("balances", "upsert-kera", COLUMNS, FORMATS);
        ordered("ann", 3, "bob", 7, "ann", 4, "bob", -7, "eve", 1);
        flink.executeSql("INSERT INTO balances SELECT who, SUM(amount) FROM orders GROUP BY who HAVING SUM(amount) > 0").await();
        List<String> stored = stored("balances");
        assertTrue(stored.contains("{\"who\":\"ann\"} {\"amount\":7}"), stored.toString());
        assertTrue(stored.contains("{\"who\":\"bob\"} -"), "a deletion has a key alone: " + stored);
        assertEquals(Map.of("ann", 7L, "eve", 1L), newest("SELECT who, amount FROM balances"));
        // Also what came of it is kept up to date.
        assertEquals(Map.of("all", 8L), newest("SELECT 'all', SUM(amount) FROM balances"));
        ordered("bob", 9, "ann", -7);
        flink.executeSql("INSERT INTO balances SELECT who, SUM(amount) FROM orders GROUP BY who HAVING SUM(amount) > 0").await();
        assertEquals(Map.of("bob", 9L, "eve", 1L), newest("SELECT who, amount FROM balances"));
    }

    @Test
    void aStreamThatWasCompactedHasTheSameRows() throws Exception {
        admin.createCompactedStream("states", 1, 1);
        StringBuilder lines = new StringBuilder();
        for (int n = 0; n < 1_000; n++) {
            lines.append("{\"who\":\"").append(n % 10).append("\"}\t{\"amount\":").append(n).append("}\n");
        }
        broker.run(lines.toString(), "produce", "states", "--key-separator", "\t");
        table("states", "upsert-kera", COLUMNS, FORMATS + ", 'scan.order' = 'key', 'scan.key-shares' = '2'");
        Map<String, Object> rows = new TreeMap<>();
        for (long n = 990; n < 1_000; n++) {
            rows.put(String.valueOf(n % 10), n);
        }
        broker.run("", "stream", "compact", "states");
        assertEquals(rows, newest("SELECT who, amount FROM states"));
        assertTrue(stored("states").size() < 1_000, "nothing was compacted");
    }

    @Test
    void aRecordWithoutAKeyFailsTheJob() throws Exception {
        admin.createStream("keyless", 1, 1);
        broker.run("{\"amount\":1}\n", "produce", "keyless");
        table("keyless", "upsert-kera", COLUMNS, FORMATS);
        Exception failed = assertThrows(Exception.class, () -> newest("SELECT who, amount FROM keyless"));
        String told = ExceptionUtils.stringifyException(failed);
        assertTrue(told.contains("record 0 of lane keyless:0/0@0 has no key"), told);
    }

    private static void isRefused(String why, Executable what) {
        String told = ExceptionUtils.stringifyException(assertThrows(Exception.class, what));
        assertTrue(told.contains(why), told);
    }

    @Test
    void whatDoesNotFitIsRefused() throws Exception {
        table("nokey", "upsert-kera", "(who STRING, amount BIGINT)", FORMATS);
        isRefused("add PRIMARY KEY", () -> flink.explainSql("SELECT * FROM nokey"));
        isRefused("add PRIMARY KEY", () -> flink.explainSql("INSERT INTO nokey VALUES ('a', 1)"));
        table("fields", "upsert-kera", COLUMNS, FORMATS + ", 'key.fields' = 'who'");
        isRefused("leave key.fields out", () -> flink.explainSql("SELECT * FROM fields"));
        table("unordered", "upsert-kera", COLUMNS, FORMATS + ", 'scan.order' = 'none'");
        isRefused("use lane or key", () -> flink.explainSql("SELECT * FROM unordered"));
        table("changes", "upsert-kera", COLUMNS, ", 'key.format' = 'json', 'value.format' = 'debezium-json'");
        isRefused("use the connector kera", () -> flink.explainSql("SELECT * FROM changes"));
        table("formatless", "upsert-kera", COLUMNS, ", 'value.format' = 'json'");
        isRefused("key.format", () -> flink.explainSql("SELECT * FROM formatless"));
    }
}
