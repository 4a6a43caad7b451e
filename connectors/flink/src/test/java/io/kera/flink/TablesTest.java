package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.Login;
import io.kera.client.Pin;
import io.kera.client.ReadmePrograms;
import io.kera.client.TestBroker;
import io.kera.client.TestIssuer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
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
import org.junit.jupiter.api.function.Executable;
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
        String plan = flink.explainSql("SELECT plane FROM seen WHERE at_time > TO_TIMESTAMP_LTZ(0, 3)");
        assertTrue(plan.contains("TableSourceScan") && plan.contains("watermark=[-("), plan);
        String optimized = plan.substring(plan.indexOf("== Optimized Physical Plan =="));
        assertFalse(optimized.contains("WatermarkAssigner"), "each lane has watermarks of its own: " + plan);
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
    void theStreamletOfARecordIsAColumn() throws Exception {
        Map<Integer, Long> stored = new TreeMap<>();
        TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inBatchMode());
        try (Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("metro", 3, 2);
            flink.executeSql(table("metro (train STRING, at_streamlet INT METADATA FROM 'streamlet' VIRTUAL)", "metro",
                    ", 'format' = 'raw', 'scan.bounded.mode' = 'latest', 'scan.order' = 'key', 'scan.key-shares' = '3'"));
            StringBuilder keyed = new StringBuilder();
            for (int n = 0; n < 50; n++) {
                keyed.append(n).append('\t').append(n).append('\n');
            }
            broker.run(keyed.toString(), "produce", "metro", "--key-separator", "\t");
            for (Admin.LaneBounds lane : admin.bounds("metro")) {
                stored.merge(lane.streamlet(), lane.head() - lane.start(), Long::sum);
            }
        }
        assertEquals(Set.of(0, 1, 2), stored.keySet());
        assertTrue(stored.values().stream().distinct().count() > 1, "streamlets can be told from each other: " + stored);
        List<String> counted = rows(flink.executeSql("SELECT at_streamlet, COUNT(*) FROM metro GROUP BY at_streamlet"));
        assertEquals(
                stored.entrySet().stream().map(each -> "+I[" + each.getKey() + ", " + each.getValue() + "]").toList(), counted);
    }

    @Test
    void timesAndHeadersAreWritten() throws Exception {
        stream("told", 1);
        TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
        flink.getConfig().setLocalTimeZone(ZoneOffset.UTC);
        flink.executeSql(table(
                "told (`headers` MAP<STRING, BYTES> METADATA, n INT, at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',"
                        + " place BIGINT METADATA FROM 'ordinal' VIRTUAL)",
                "told", ", 'format' = 'json', 'scan.bounded.mode' = 'latest'"));
        flink.executeSql("INSERT INTO told SELECT MAP['a', ENCODE('x', 'UTF-8'), 'b', CAST(NULL AS BYTES)], 1,"
                + " TO_TIMESTAMP_LTZ(86400000, 3)").await();
        flink.executeSql("INSERT INTO told SELECT CAST(NULL AS MAP<STRING, BYTES>), 2, CAST(NULL AS TIMESTAMP_LTZ(3))").await();
        assertEquals(List.of("+I[1, x, true, 2, 1970-01-02T00:00:00Z]"), rows(flink.executeSql(
                "SELECT n, DECODE(`headers`['a'], 'UTF-8'), `headers`['b'] IS NULL, CARDINALITY(`headers`), at_time"
                        + " FROM told WHERE place = 0")));
        assertEquals(List.of("+I[2, 0, true]"), rows(flink.executeSql(
                "SELECT n, CARDINALITY(`headers`), at_time > TO_TIMESTAMP_LTZ(86400000, 3) FROM told WHERE place = 1")));
    }

    @Test
    void tablesAreWrittenAndReadAsAUser(@TempDir Path home) throws Exception {
        Path right = Files.writeString(home.resolve("right"), "open sesame\n");
        try (TestBroker users = TestBroker.withUsers("open sesame", "ann")) {
            ConnectOptions ann = ConnectOptions.DEFAULT.withLogin(Login.ofFile("ann", right));
            try (Admin admin = new Admin(List.of(users.address()), ann)) {
                admin.createStream("safe", 1, 2);
            }
            TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
            String table = "CREATE TABLE %s (n INT) WITH ('connector' = 'kera', 'bootstrap' = '" + users.address()
                    + "', 'stream' = 'safe', 'format' = 'json', 'scan.bounded.mode' = 'latest' %s)";
            flink.executeSql(String.format(table, "safe", ", 'user' = 'ann', 'password' = 'open sesame'"));
            flink.executeSql("INSERT INTO safe VALUES (1), (2), (3)").await();
            List<String> all = List.of("+I[1]", "+I[2]", "+I[3]");
            assertEquals(all, rows(flink.executeSql("SELECT * FROM safe")));
            flink.executeSql(String.format(table, "shared", ", 'scan.order' = 'none', 'user' = 'ann', 'password-file' = '"
                    + right + "', 'sasl.mechanism' = 'plain'"));
            assertEquals(all, rows(flink.executeSql("SELECT * FROM shared")));
            String plan = flink.explainSql("SELECT * FROM safe") + flink.explainSql("INSERT INTO safe SELECT * FROM shared");
            assertFalse(plan.contains("sesame"), plan);
            // Flink shows a definition as it was given, of which the README warns.
            assertTrue(rows(flink.executeSql("SHOW CREATE TABLE safe")).get(0).contains("open sesame"));

            flink.executeSql(String.format(table, "wrong", ", 'user' = 'ann', 'password' = 'guessed'"));
            flink.executeSql(String.format(table, "wrong_ranges",
                    ", 'scan.order' = 'none', 'user' = 'ann', 'password' = 'guessed'"));
            flink.executeSql(String.format(table, "nobodys", ""));
            isRefused("the user or the password is wrong", () -> rows(flink.executeSql("SELECT * FROM wrong")));
            isRefused("the user or the password is wrong", () -> rows(flink.executeSql("SELECT * FROM wrong_ranges")));
            isRefused("the user or the password is wrong", () -> flink.executeSql("INSERT INTO wrong VALUES (4)").await());
            isRefused("asks its clients who they are", () -> rows(flink.executeSql("SELECT * FROM nobodys")));
            assertEquals(all, rows(flink.executeSql("SELECT * FROM safe")));

            for (String half : List.of(", 'user' = 'ann'", ", 'password' = 'open sesame'",
                    ", 'user' = 'ann', 'password' = 'open sesame', 'password-file' = 'x'")) {
                flink.executeSql(String.format(table, "half", half));
                Throwable told = isRefused("user goes together with one of", () -> flink.executeSql("SELECT * FROM half"));
                assertFalse(ExceptionUtils.stringifyException(told).contains("sesame"), "options are told without secrets");
                flink.executeSql("DROP TABLE half");
            }
        }
    }

    @Test
    void tablesAreReadByAToken(@TempDir Path home) throws Exception {
        TestIssuer issuer = new TestIssuer(home);
        Path file = Files.writeString(home.resolve("token"), issuer.token("ann", 600));
        try (TestBroker users = TestBroker.start(issuer.flags().toArray(new String[0]))) {
            ConnectOptions ann = ConnectOptions.DEFAULT.withLogin(Login.ofTokenFile(file));
            try (Admin admin = new Admin(List.of(users.address()), ann)) {
                issuer.awaitKeys(admin);
                admin.createStream("safe", 1, 1);
            }
            TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
            String table = "CREATE TABLE %s (n INT) WITH ('connector' = 'kera', 'bootstrap' = '" + users.address()
                    + "', 'stream' = 'safe', 'format' = 'json', 'scan.bounded.mode' = 'latest', 'token-file' = '" + file + "' %s)";
            flink.executeSql(String.format(table, "safe", ""));
            flink.executeSql("INSERT INTO safe VALUES (1), (2)").await();
            assertEquals(List.of("+I[1]", "+I[2]"), rows(flink.executeSql("SELECT * FROM safe")));
            flink.executeSql(String.format(table, "twice", ", 'user' = 'ann', 'password' = 'open sesame'"));
            isRefused("leave user and sasl.mechanism out", () -> flink.executeSql("SELECT * FROM twice"));
        }
    }

    @Test
    void aTableMayPinWhatItsCheckpointsNeed() throws Exception {
        stream("pinned", 1);
        broker.run("a\nb\n", "produce", "pinned");
        EnvironmentSettings often = EnvironmentSettings.newInstance().inStreamingMode()
                .withConfiguration(new Configuration().set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(50))).build();
        TableEnvironment flink = TableEnvironment.create(often);
        String bounded = ", 'format' = 'raw', 'scan.bounded.mode' = 'latest', 'scan.pin.policy' = 'wait'"
                + ", 'scan.pin.max-age' = '2 h', 'scan.pin.max-bytes' = '3 mb'";
        flink.executeSql(table("unnamed (v STRING)", "pinned", bounded));
        isRefused("scan.pin.policy is of a pin: name it with scan.pin", () -> flink.executeSql("SELECT * FROM unnamed"));
        flink.executeSql(table("named (v STRING)", "pinned", bounded + ", 'scan.pin' = 'table-1', 'scan.pin.required' = 'true'"));
        assertEquals(List.of("+I[a]", "+I[b]"), rows(flink.executeSql("SELECT * FROM named")));
        try (Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            while (admin.pins("pinned").pins().isEmpty()) {
                LockSupport.parkNanos(10_000_000);
            }
            Pin pin = admin.pins("pinned").pins().get(0);
            assertTrue(pin.job().contains("SELECT"), pin.job());
            assertEquals(List.of("table-1", Pin.Policy.WAIT, Duration.ofHours(2), 3L << 20),
                    List.of(pin.name(), pin.policy(), pin.maxAge(), pin.maxBytes()));
            flink.executeSql(table("whole (v STRING)", "pinned", bounded + ", 'scan.pin' = 'table-1', 'scan.pin.delete-at-end' = 'true'"));
            assertEquals(List.of("+I[a]", "+I[b]"), rows(flink.executeSql("SELECT * FROM whole")));
            while (!admin.pins("pinned").pins().isEmpty()) {
                LockSupport.parkNanos(10_000_000);
            }
        }
    }

    private static Throwable isRefused(String why, Executable work) {
        Throwable error = assertThrows(Exception.class, work);
        assertTrue(ExceptionUtils.findThrowableWithMessage(error, why).isPresent(), ExceptionUtils.stringifyException(error));
        return error;
    }

    @Test
    void exactlyOnceWithoutAPrefixIsRefusedWithWords() throws Exception {
        stream("once", 1);
        TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
        flink.executeSql(table("once (n INT)", "once", ", 'format' = 'json', 'sink.delivery-guarantee' = 'exactly-once'"));
        isRefused("sink.transactional-id-prefix", () -> flink.executeSql("INSERT INTO once VALUES (1)"));
        String prefix = ", 'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'once'";
        flink.executeSql(table("twice (n INT)", "once", ", 'format' = 'json'" + prefix));
        flink.executeSql("INSERT INTO twice VALUES (1), (2)").await();
        String bounded = ", 'format' = 'json', 'scan.bounded.mode' = 'latest'";
        flink.executeSql(table("written (n INT)", "once", bounded));
        assertEquals(List.of("+I[1]", "+I[2]"), rows(flink.executeSql("SELECT * FROM written")));
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
        isRefused("scan.growth = unordered", () -> rows(flink.executeSql("SELECT * FROM grown")));
        flink.executeSql(table("unordered (n STRING)", "grown", bounded + ", 'scan.growth' = 'unordered'"));
        assertEquals(List.of("+I[1]", "+I[2]", "+I[3]"), rows(flink.executeSql("SELECT * FROM unordered")));
    }

    @Test
    void theProgramsOfTheReadmeOfAllConnectorsDoWhatItSays(@TempDir Path home) throws Exception {
        List<String> programs = ReadmePrograms.ofAll("java", broker.address());
        assertEquals(1, programs.size());
        assertEquals("3 visits are stored\n", ReadmePrograms.run(programs.get(0), home));
        List<String> blocks = ReadmePrograms.ofAll("sql", broker.address());
        assertEquals(1, blocks.size());
        String[] statements = blocks.get(0).split(";\\s*");
        assertEquals(2, statements.length);
        TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inBatchMode());
        flink.executeSql(statements[0]);
        assertEquals(List.of("+I[home, 2]", "+I[shop, 1]"), rows(flink.executeSql(statements[1])));
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
        assertEquals(7, statements.size());
        stream("balances", 1);
        flink.executeSql(statements.get(0));
        flink.executeSql(statements.get(1)).await();
        flink.executeSql(statements.get(2));
        flink.executeSql(statements.get(4));
        List<String> sums = rows(flink.executeSql(statements.get(3)));
        assertTrue(sums.contains("+I[bob, 7]") && sums.contains("+U[ann, 8]"), sums.toString());
        flink.executeSql(statements.get(5));
        flink.executeSql(statements.get(6)).await();
        flink.executeSql("CREATE TABLE balances_so_far WITH ('scan.bounded.mode' = 'latest') LIKE balances");
        List<String> newest = rows(flink.executeSql("SELECT who, amount FROM balances_so_far"));
        assertTrue(newest.contains("+I[bob, 7]") && newest.contains("+U[ann, 8]"), newest.toString());
        List<String> programs = ReadmePrograms.blocks("java", broker.address());
        assertEquals(1, programs.size());
        String told = ReadmePrograms.run(programs.get(0), home);
        assertTrue(told.contains("{\"amount\":3}"), told);
    }
}
