package io.kera.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.TestBroker;
import io.kera.client.Transactions;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Drivers, each a process, are killed at every step of a micro-batch that writes exactly once, one after the other. */
@Timeout(900)
class DriverKillTest {
    static final int BATCH = 200;
    private static final int RECORDS = 6_000;
    /** More than a micro-batch has. */
    private static final int MOST_STEPS = 60;

    private TestBroker broker;
    private Admin admin;
    private Transactions transactions;
    @TempDir
    private Path home;

    @BeforeEach
    void start() throws IOException {
        broker = TestBroker.start();
        admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
        transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT);
        admin.createStream("s", 1, 2);
        admin.createStream("t", 1, 2);
    }

    @AfterEach
    void stop() throws IOException {
        transactions.close();
        admin.close();
        broker.close();
    }

    /** What a driver left that was killed: prepared transactions, and a list of a micro-batch that Spark has not logged. */
    private record Left(boolean prepared, boolean listed) {}

    @Test
    void eachRecordPassesOnceWhereverTheDriverIsKilled() throws Exception {
        TestSpark.produceKeyed(broker.address(), "s", 0, RECORDS);
        List<Left> seen = new ArrayList<>();
        List<String> steps = new ArrayList<>();
        String stopped = "";
        // Until one was stopped when Spark logs what the sink has committed.
        for (int step = 1; step <= MOST_STEPS && !stopped.contains("/commits/"); step++) {
            stopped = killedBefore(step);
            steps.add(stopped);
            int open = transactions.open("spark").size();
            seen.add(new Left(open > 0, listed()));
        }
        assertTrue(stopped.contains("/commits/"), steps.toString());
        assertTrue(seen.contains(new Left(true, false)), "prepared, and nothing decided: " + seen + " at " + steps);
        assertTrue(seen.contains(new Left(true, true)), "decided, and nothing committed: " + seen + " at " + steps);
        assertTrue(seen.contains(new Left(false, true)), "committed, and not logged: " + seen + " at " + steps);

        Process last = driver(0);
        List<String> told = lines(last);
        assertEquals(0, last.waitFor(), String.join("\n", told));
        TestSpark.hasEachOnce(broker.address(), RECORDS);
        assertEquals(List.of(), transactions.open("spark"));
    }

    /** True if the newest list of the sink is of a micro-batch that Spark has not logged. */
    private boolean listed() throws IOException {
        long logged = newest(home.resolve("checkpoint/commits"));
        Path sinks = home.resolve("checkpoint").resolve(KeraOptions.SINK_FOLDER);
        if (!Files.isDirectory(sinks)) {
            return false;
        }
        Path sink;
        try (Stream<Path> queries = Files.list(sinks)) {
            sink = queries.findFirst().orElseThrow();
        }
        long entry = newest(sink);
        if (entry < 0) {
            return false;
        }
        Path file = sink.resolve(String.valueOf(entry));
        return SinkLog.Decision.parse(Files.readString(file)).epoch() > logged;
    }

    /** The largest number that names a file; -1: none. */
    private static long newest(Path folder) throws IOException {
        if (!Files.isDirectory(folder)) {
            return -1;
        }
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(file -> file.getFileName().toString()).filter(name -> name.matches("\\d+"))
                    .mapToLong(Long::parseLong).max().orElse(-1);
        }
    }

    /** Runs a driver until it has come to a step, and kills it there; which one it was. */
    private String killedBefore(int step) throws Exception {
        Process driver = driver(step);
        try {
            List<String> told = lines(driver);
            assertTrue(!told.isEmpty() && told.get(told.size() - 1).startsWith(StoppingFiles.STOPPED),
                    "step " + step + ": " + String.join("\n", told));
            return told.get(told.size() - 1);
        } finally {
            driver.destroyForcibly().waitFor();
        }
    }

    /** What a driver prints until it stops, or ends. */
    private static List<String> lines(Process driver) throws IOException {
        List<String> told = new ArrayList<>();
        BufferedReader from = new BufferedReader(new InputStreamReader(driver.getInputStream(), StandardCharsets.UTF_8));
        for (String line; (line = from.readLine()) != null; ) {
            told.add(line);
            if (line.startsWith(StoppingFiles.STOPPED)) {
                break;
            }
        }
        return told;
    }

    private Process driver(int step) throws IOException {
        List<String> words = new ArrayList<>(List.of(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-Xmx1g", "-XX:TieredStopAtLevel=1"));
        ManagementFactory.getRuntimeMXBean().getInputArguments().stream()
                .filter(argument -> argument.startsWith("--add-opens")).forEach(words::add);
        words.addAll(List.of("-cp", System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")),
                KilledDriver.class.getName(), broker.address(), home.resolve("checkpoint").toString(), String.valueOf(step)));
        Path log = home.resolve("driver.log");
        return new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.appendTo(log.toFile())).start();
    }
}
