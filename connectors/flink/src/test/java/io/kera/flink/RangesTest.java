package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.TestBroker;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.runtime.client.JobStatusMessage;
import org.apache.flink.runtime.execution.ExecutionState;
import org.apache.flink.runtime.executiongraph.AccessExecutionVertex;
import org.apache.flink.runtime.executiongraph.ErrorInfo;
import org.apache.flink.runtime.highavailability.nonha.embedded.HaLeadershipControl;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.testutils.MiniClusterResourceConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.test.junit5.InjectMiniCluster;
import org.apache.flink.test.junit5.MiniClusterExtension;
import org.apache.flink.util.CloseableIterator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.extension.RegisterExtension;

/** More readers than lanes share them, where no order is asked for: each record passes once, whatever fails. */
@EnabledIfSystemProperty(named = "kera.program", matches = ".+")
@Timeout(300)
class RangesTest {
    private static final int RECORDS = 60_000;
    /** Those that are written once another JobManager has the job. */
    private static final int LATE = 5_000;
    private static final int READERS = 8;
    private static final AtomicInteger SEEN = new AtomicInteger();
    /** What each reader has emitted, over all attempts. */
    private static final AtomicIntegerArray EMITTED = new AtomicIntegerArray(READERS);
    private static final int LANES = 2;
    /** Until more readers than lanes have records. */
    private static final CountDownLatch WITHOUT = new CountDownLatch(LANES + 1);
    private static final AtomicBoolean NOT_TOGETHER = new AtomicBoolean();

    @RegisterExtension
    private static final MiniClusterExtension FLINK = new MiniClusterExtension(new MiniClusterResourceConfiguration.Builder()
            // One more than the job needs.
            .setNumberTaskManagers(3)
            .setNumberSlotsPerTaskManager(READERS / 2)
            .withHaLeadershipControl()
            .build());

    /**
     * A step that waits, and fails once. With its first record it stays until more readers than lanes have one: a reader
     * with records in hand asks for no more.
     */
    private static final class Slow extends RichMapFunction<String, String> {
        private static final long serialVersionUID = 1L;
        private int count;

        @Override
        public String map(String record) throws InterruptedException {
            if (count == 0) {
                WITHOUT.countDown();
                if (!WITHOUT.await(20, TimeUnit.SECONDS)) {
                    NOT_TOGETHER.set(true);
                }
            }
            if (++count % 20 == 0) {
                LockSupport.parkNanos(1_000_000);
            }
            EMITTED.incrementAndGet(getRuntimeContext().getTaskInfo().getIndexOfThisSubtask());
            if (SEEN.incrementAndGet() == RECORDS / 3) {
                throw new IllegalStateException("a failure of the test");
            }
            return record.substring(0, record.indexOf(' '));
        }
    }

    @Test
    void readersShareLanesAndEachRecordPassesOnce(@InjectMiniCluster MiniCluster flink) throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, LANES);
            produce(broker.address(), 0, RECORDS);
            Set<String> found = ConcurrentHashMap.newKeySet();
            Stuck.watch(
                    () -> "found " + found.size() + ", seen " + SEEN.get() + ", without " + WITHOUT.getCount() + ", broker "
                            + broker.told() + ", jobs " + jobs(flink),
                    () -> pass(flink, broker, found));
            assertTrue(SEEN.get() > RECORDS + LATE, "nothing was read again");
            assertFalse(NOT_TOGETHER.get(), "no more readers than lanes had records at one time");
            for (int reader = 0; reader < READERS; reader++) {
                assertTrue(EMITTED.get(reader) >= SEEN.get() / 20, "reader " + reader + " of " + EMITTED + " emitted too little");
            }
        }
    }

    private static void pass(MiniCluster flink, TestBroker broker, Set<String> found) throws Exception {
        StreamExecutionEnvironment env = environment();
        // What is found is in a completed checkpoint.
        try (CloseableIterator<String> results = job(env, broker.address()).collectAsync()) {
            JobID job = env.executeAsync().getJobID();
            while (found.size() < RECORDS + LATE) {
                String record = results.next();
                assertTrue(found.add(record), "record " + record + " passed twice");
                if (found.size() == RECORDS / 6) {
                    awaitRunning(flink, job);
                    flink.terminateTaskManager(0).get();
                    flink.startTaskManager();
                }
                if (found.size() == RECORDS / 2) {
                    broker.kill();
                    broker.restart();
                }
                if (found.size() == RECORDS * 2 / 3) {
                    // Another JobManager takes the job over, from the last checkpoint.
                    awaitRunning(flink, job);
                    HaLeadershipControl leaders = flink.getHaLeadershipControl().orElseThrow();
                    leaders.revokeJobMasterLeadership(job).get();
                    leaders.grantJobMasterLeadership(job).get();
                    produce(broker.address(), RECORDS, RECORDS + LATE);
                }
            }
        }
    }

    /**
     * Waits until all tasks run. The sink that collects results brings its TaskManager down if it ends while it is being set
     * up, and then there are too few slots.
     */
    static void awaitRunning(MiniCluster flink, JobID job) throws Exception {
        long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        while (true) {
            boolean run = true;
            for (AccessExecutionVertex task : flink.getExecutionGraph(job).get().getAllExecutionVertices()) {
                run &= task.getExecutionState() == ExecutionState.RUNNING;
            }
            if (run) {
                return;
            }
            assertTrue(System.nanoTime() < deadline, "not all tasks run");
            LockSupport.parkNanos(1_000_000);
        }
    }

    private static String jobs(MiniCluster flink) throws Exception {
        StringBuilder told = new StringBuilder();
        for (JobStatusMessage job : flink.listJobs().get(10, TimeUnit.SECONDS)) {
            ErrorInfo failed = flink.getExecutionGraph(job.getJobId()).get(10, TimeUnit.SECONDS).getFailureInfo();
            told.append(job.getJobState()).append(' ').append(failed == null ? "" : failed.getExceptionAsString());
        }
        return told.substring(0, Math.min(told.length(), 600)).replaceAll("\\s+", " ");
    }

    private static void produce(String address, int from, int to) throws IOException {
        try (Producer producer = new Producer("s", ProducerOptions.to(address).withBatchSize(16 << 10))) {
            for (int n = from; n < to; n++) {
                String text = n + " " + "x".repeat(90);
                producer.append(null, text.getBytes(StandardCharsets.UTF_8));
            }
        }
    }

    private static StreamExecutionEnvironment environment() {
        Configuration config = new Configuration();
        config.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(100));
        config.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 100);
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, Duration.ofMillis(50));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(config);
        env.setParallelism(READERS);
        return env;
    }

    private static DataStream<String> job(StreamExecutionEnvironment env, String address) {
        KeraSource<String> source = KeraSource.<String>builder()
                .bootstrap(address)
                .streams("s")
                .order(Order.NONE)
                .growth(Growth.UNORDERED)
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .build(env.getConfiguration());
        return env.fromSource(source, WatermarkStrategy.noWatermarks(), "s").map(new Slow());
    }
}
