package io.kera.samza;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.KeraRecord;
import io.kera.client.TestBroker;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** A job that is killed and started again goes on from its checkpoint, and loses no record. */
@Timeout(400)
class KilledJobTest {
    static final long NANOS_EACH = 200_000;
    private static final int KILLS = 4;
    private static final int RECORDS = 4_000;

    @TempDir
    private Path home;

    @Test
    void noRecordIsLostWhereverTheJobIsKilled() throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = TestJobs.admin(broker.address())) {
            admin.createStream("s", 2, 1);
            admin.createStream("t", 2, 1);
            List<Map<Integer, Long>> begun = new ArrayList<>();
            for (int run = 0; run <= KILLS; run++) {
                begun.add(TestJobs.checkpoints(broker.address(), "killed", 2));
                TestJobs.produce(broker.address(), "s", run * RECORDS, (run + 1) * RECORDS);
                long before = TestJobs.stored(admin, "t");
                Process job = job(broker.address(), run);
                try {
                    if (run < KILLS) {
                        // In the middle of what it has to do, more or less behind a checkpoint.
                        long enough = before + RECORDS / 3 + 371L * run;
                        TestJobs.await("run " + run, () -> TestJobs.stored(admin, "t") > enough || !job.isAlive());
                    } else {
                        // What checkpoints have is flushed.
                        TestJobs.awaitCheckpoints(admin, broker.address(), "killed");
                    }
                    assertTrue(job.isAlive(), () -> log());
                } finally {
                    job.destroyForcibly().waitFor();
                }
            }
            assertEquals((KILLS + 1) * RECORDS, places(admin).size());
            check(admin, begun);
        }
    }

    private String log() {
        try {
            return Files.readString(home.resolve("job.log"));
        } catch (IOException error) {
            return error.toString();
        }
    }

    /** Each run began behind the checkpoint that there was. */
    private static void check(Admin admin, List<Map<Integer, Long>> begun) throws IOException {
        Map<Integer, Map<Integer, Long>> first = new HashMap<>();
        for (List<KeraRecord> lane : TestJobs.records(admin, "t").values()) {
            for (KeraRecord record : lane) {
                String[] words = TestJobs.text(record.value()).split(" ");
                first.computeIfAbsent(Integer.valueOf(words[0]), any -> new HashMap<>())
                        .merge(Integer.valueOf(words[1]), Long.valueOf(words[2]), Math::min);
            }
        }
        int from = 0;
        for (int run = 0; run <= KILLS; run++) {
            for (Map.Entry<Integer, Long> checkpoint : begun.get(run).entrySet()) {
                Long ordinal = first.getOrDefault(run, Map.of()).get(checkpoint.getKey());
                if (ordinal != null) {
                    // What was on its way when the job was killed may be stored after it was looked for.
                    assertTrue(ordinal > checkpoint.getValue(), "run " + run + ": " + checkpoint + ", began at " + ordinal);
                    from++;
                }
            }
        }
        assertTrue(from >= KILLS, "runs that went on from a checkpoint: " + from + ", of " + begun);
    }

    /** The places of s that are in t, each once. */
    private static Set<String> places(Admin admin) throws IOException {
        Set<String> places = new HashSet<>();
        TestJobs.records(admin, "t").values().forEach(lane -> lane.forEach(record -> {
            String text = TestJobs.text(record.value());
            places.add(text.substring(text.indexOf(' ') + 1));
        }));
        return places;
    }

    private Process job(String address, int run) throws IOException {
        return new ProcessBuilder(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp",
                System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")), KilledJob.class.getName(),
                address, String.valueOf(run))
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(home.resolve("job.log").toFile()))
                .start();
    }
}
