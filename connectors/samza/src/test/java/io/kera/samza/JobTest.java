package io.kera.samza;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.KeraRecord;
import io.kera.client.LanePosition;
import io.kera.client.TestBroker;
import java.io.IOException;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.samza.application.TaskApplication;
import org.apache.samza.job.ApplicationStatus;
import org.apache.samza.operators.KV;
import org.apache.samza.runtime.LocalApplicationRunner;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Jobs as Samza runs them, in the process of the test. */
@Timeout(240)
class JobTest {
    private TestBroker broker;
    private Admin admin;
    @TempDir
    private Path home;

    @BeforeEach
    void start() throws IOException {
        broker = TestBroker.start();
        admin = TestJobs.admin(broker.address());
        admin.createStream("s", 2, 1);
        admin.createStream("t", 2, 1);
    }

    @AfterEach
    void stop() throws IOException {
        admin.close();
        broker.close();
    }

    @Test
    void aJobReadsAndWritesEachRecordOnceAndGoesOnWhereItStopped() throws Exception {
        Map<String, String> config = TestJobs.config(broker.address(), "copy");
        config.put("systems.kera.kera.pin", "p");
        TestJobs.produce(broker.address(), "s", 0, 2_000);
        runUntil(TestJobs.copy(), config, 2_000);
        TestJobs.produce(broker.address(), "s", 2_000, 3_000);
        runUntil(TestJobs.copy(), config, 3_000);
        // What a checkpoint has does not come twice.
        assertEquals(3_000, TestJobs.stored(admin, "t"));
        // The last checkpoint has all, and the pin stays behind it.
        Set<LanePosition> ends = admin.bounds("s").stream().map(lane -> new LanePosition(lane.streamlet(), lane.lane(), lane.head()))
                .collect(Collectors.toSet());
        assertEquals(List.of(ends), admin.pins("s").pins().stream().map(pin -> Set.copyOf(pin.positions())).toList());
        Map<Integer, List<KeraRecord>> source = TestJobs.records(admin, "s");
        TestJobs.records(admin, "t").forEach((partition, records) -> {
            // Keys are where all clients put them.
            assertEquals(source.get(partition).stream().map(record -> TestJobs.text(record.value())).toList(),
                    records.stream().map(record -> TestJobs.text(record.value())).toList());
        });
    }

    /** Runs a job until stream t has so many records, and checkpoints tell of them, and stops it. */
    private void runUntil(TaskApplication application, Map<String, String> config, int records)
            throws InterruptedException, IOException {
        LocalApplicationRunner runner = TestJobs.run(application, config);
        TestJobs.await(records + " records in t", () -> TestJobs.stored(admin, "t") >= records
                || runner.status().getStatusCode() == ApplicationStatus.StatusCode.UnsuccessfulFinish);
        assertEquals(ApplicationStatus.Running, runner.status(), String.valueOf(runner.status().getThrowable()));
        TestJobs.awaitCheckpoints(admin, broker.address(), config.get("job.name"));
        TestJobs.stop(runner);
        assertEquals(ApplicationStatus.SuccessfulFinish, runner.status(), String.valueOf(runner.status().getThrowable()));
    }

    @Test
    void stateComesBackFromItsStream() throws Exception {
        Map<String, String> config = TestJobs.config(broker.address(), "count");
        for (int round = 1; round <= 3; round++) {
            // As on another machine: nothing is left of the state but its stream.
            TestJobs.withStore(config, home.resolve("round-" + round));
            TestJobs.produce(broker.address(), "s", 0, 500);
            runUntil(TestJobs.count(), config, 500 * round);
        }
        Map<String, Integer> counts = new HashMap<>();
        for (KV<String, String> pair : TestJobs.pairs(admin, "t")) {
            assertEquals(counts.merge(pair.getKey(), 1, Integer::sum), Integer.parseInt(pair.getValue()), pair.getKey());
        }
        assertEquals(10, counts.size());
        assertTrue(counts.values().stream().allMatch(count -> count == 150), counts.toString());
        // Each task's state is in its own partition.
        assertEquals(2, admin.stream("counts-changelog").partitions());
        Map<Integer, List<KeraRecord>> source = TestJobs.records(admin, "s");
        TestJobs.records(admin, "counts-changelog").forEach((partition, changes) -> assertEquals(
                keys(source.get(partition)), keys(changes)));
    }

    private static List<String> keys(List<KeraRecord> records) {
        return records.stream().map(record -> TestJobs.text(record.key())).distinct().sorted().toList();
    }

    @Test
    void aJobWithStateEndsWhereLanesGrow() throws Exception {
        Map<String, String> config = TestJobs.config(broker.address(), "count");
        TestJobs.withStore(config, home);
        TestJobs.produce(broker.address(), "s", 0, 100);
        LocalApplicationRunner runner = TestJobs.run(TestJobs.count(), config);
        TestJobs.await("all is counted", () -> TestJobs.stored(admin, "t") == 100);
        TestJobs.awaitCheckpoints(admin, broker.address(), "count");
        TestJobs.stop(runner);
        runner = TestJobs.run(TestJobs.count(), config);
        admin.growStream("s", 4);
        refused(runner, "stream s of system kera has grown from 2 to 4 lanes");
        // Nor does it begin again.
        TestJobs.produce(broker.address(), "s", 0, 100);
        refused(TestJobs.run(TestJobs.count(), config), "it keeps the state of 2 tasks");
        config.remove("stores.counts.changelog");
        refused(TestJobs.run(TestJobs.count(), config), "stream s of system kera has grown from 2 to 4 lanes");
        assertEquals(100, TestJobs.stored(admin, "t"));
    }

    private static void refused(LocalApplicationRunner runner, String words) {
        runner.waitForFinish();
        assertEquals(ApplicationStatus.StatusCode.UnsuccessfulFinish, runner.status().getStatusCode());
        StringBuilder told = new StringBuilder();
        for (Throwable cause = runner.status().getThrowable(); cause != null; cause = cause.getCause()) {
            told.append(cause.getMessage()).append('\n');
        }
        assertTrue(told.toString().contains(words), told.toString());
    }

    @Test
    void aJobWithoutStateReadsNewLanesAfterItsNextStart() throws Exception {
        Map<String, String> config = TestJobs.config(broker.address(), "copy");
        TestJobs.produce(broker.address(), "s", 0, 100);
        LocalApplicationRunner runner = TestJobs.run(TestJobs.copy(), config);
        TestJobs.await("the first are copied", () -> TestJobs.stored(admin, "t") == 100);
        admin.growStream("s", 4);
        TestJobs.produce(broker.address(), "s", 100, 1_000);
        Map<Integer, List<KeraRecord>> source = TestJobs.records(admin, "s");
        long old = source.get(0).size() + source.get(1).size();
        assertTrue(old < 1_000, source.keySet().toString());
        TestJobs.await("lanes that it had are copied", () -> TestJobs.stored(admin, "t") == old);
        TestJobs.stop(runner);
        runUntil(TestJobs.copy(), config, 1_000);
        assertEquals(1_000, TestJobs.pairs(admin, "t").stream().map(KV::getValue).distinct().count());
    }

    @Test
    void aJobGoesOnWhenItsBrokerComesBack() throws Exception {
        Map<String, String> config = TestJobs.config(broker.address(), "copy");
        TestJobs.produce(broker.address(), "s", 0, 1_000);
        LocalApplicationRunner runner = TestJobs.run(TestJobs.copy(), config);
        for (int round = 1; round <= 2; round++) {
            int most = round * 1_000;
            TestJobs.await(most + " are copied", () -> TestJobs.stored(admin, "t") >= most);
            broker.kill();
            broker.restart();
            TestJobs.produce(broker.address(), "s", most, most + 1_000);
        }
        TestJobs.await("all are copied", () -> TestJobs.stored(admin, "t") >= 3_000);
        assertEquals(ApplicationStatus.Running, runner.status());
        TestJobs.stop(runner);
        assertEquals(3_000, TestJobs.pairs(admin, "t").stream().map(KV::getValue).distinct().count());
        assertEquals(3_000, TestJobs.stored(admin, "t"));
    }

    @Test
    void aStreamThatWasMadeAgainIsNotReadByMistake() throws Exception {
        Map<String, String> config = TestJobs.config(broker.address(), "copy");
        TestJobs.produce(broker.address(), "s", 0, 100);
        runUntil(TestJobs.copy(), config, 100);
        admin.deleteStream("s");
        admin.createStream("s", 2, 1);
        TestJobs.produce(broker.address(), "s", 100, 300);
        refused(TestJobs.run(TestJobs.copy(), config), "stream s of system kera was deleted, and another one has its name");
        config.put("streams.s.samza.reset.offset", "true");
        runUntil(TestJobs.copy(), config, 300);
        assertEquals(300, TestJobs.pairs(admin, "t").stream().map(KV::getValue).distinct().count());
    }
}
