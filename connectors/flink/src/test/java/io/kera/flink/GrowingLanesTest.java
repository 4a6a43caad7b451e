package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.TestBroker;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.runtime.highavailability.nonha.embedded.HaLeadershipControl;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.util.TestStreamEnvironment;
import org.apache.flink.util.Collector;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * Lanes grow under a job whose tasks, TaskManager, JobManager, broker and then whole cluster fail, while one lane is far behind: each key's
 * records arrive at an operator in order, each once; whether one reader has a lane or its keys are shared by several. With {@code -Dkera.long=true} there are a million of them.
 */
@EnabledIfSystemProperty(named = "kera.program", matches = ".+")
@Timeout(600)
class GrowingLanesTest {
    private static final boolean LONG = Boolean.getBoolean("kera.long");
    private static final int KEYS = 40;
    private static final int EACH = LONG ? 24_000 : 600;
    /** A key whose records wait before the job begins, and are slow to process. */
    private static final String HEAVY = "heavy";
    private static final int HEAVY_RECORDS = LONG ? 40_000 : 20_000;
    /** A task fails so often. */
    private static final int TASK_FAILURES = 3;
    private static final int PER_FAILURE = EACH / TASK_FAILURES;
    private static final int PARALLELISM = 3;

    private static final Set<String> DONE = ConcurrentHashMap.newKeySet();
    private static final AtomicReference<String> WRONG = new AtomicReference<>();
    private static final AtomicInteger FAILURES = new AtomicInteger();
    private static final AtomicInteger SEEN = new AtomicInteger();
    /** The keys whose first record was seen since the cluster began. */
    private static final Set<String> FROM_START = ConcurrentHashMap.newKeySet();
    /** What each reader has emitted. */
    private static final AtomicIntegerArray EMITTED = new AtomicIntegerArray(PARALLELISM);
    /** The checkpoints that have records behind them. */
    private static final Set<Long> WITH_RECORDS = ConcurrentHashMap.newKeySet();
    private static volatile CountDownLatch allDone;

    /** Counts what a reader emits. */
    private static final class Counted extends RichMapFunction<String, String> {
        private static final long serialVersionUID = 1L;

        @Override
        public String map(String record) {
            EMITTED.incrementAndGet(getRuntimeContext().getTaskInfo().getIndexOfThisSubtask());
            return record;
        }
    }

    /** Counts a key's records, and fails at some of them. */
    private static final class InOrder extends KeyedProcessFunction<String, String, String>
            implements CheckpointedFunction {
        private static final long serialVersionUID = 1L;
        private transient ValueState<Integer> next;
        /** Whether any record was counted, by any subtask. */
        private transient ListState<Boolean> counted;
        private transient boolean counts;

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            counted = context.getOperatorStateStore()
                    .getUnionListState(new ListStateDescriptor<>("counted", Boolean.class));
            counts = counted.get().iterator().hasNext();
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws Exception {
            counted.update(counts ? List.of(true) : List.of());
            if (counts) {
                WITH_RECORDS.add(context.getCheckpointId());
            }
        }

        @Override
        public void open(OpenContext context) {
            next = getRuntimeContext().getState(new ValueStateDescriptor<>("next", Integer.class));
        }

        @Override
        public void processElement(String record, Context context, Collector<String> out) throws Exception {
            int count = Integer.parseInt(record.substring(record.indexOf(' ') + 1));
            int expected = next.value() == null ? 0 : next.value();
            if (count != expected) {
                WRONG.compareAndSet(null, context.getCurrentKey() + ": " + count + " in place of " + expected);
                allDone.countDown();
            }
            next.update(count + 1);
            counts = true;
            if (context.getCurrentKey().equals("key-0") && count % PER_FAILURE == EACH / 4
                    && FAILURES.get() < count / PER_FAILURE + 1) {
                FAILURES.incrementAndGet();
                throw new IllegalStateException("a failure of the test");
            }
            SEEN.incrementAndGet();
            boolean heavy = context.getCurrentKey().equals(HEAVY);
            if (count == 0) {
                FROM_START.add(context.getCurrentKey());
            }
            if (heavy && count % 8 == 0) {
                LockSupport.parkNanos(1_000_000);
            }
            int last = heavy ? HEAVY_RECORDS - 1 : EACH - 1;
            if (count == last && DONE.add(context.getCurrentKey()) && DONE.size() == KEYS + 1) {
                allDone.countDown();
            }
        }
    }

    /** A JobManager and two TaskManagers, with one job. */
    private static final class Cluster implements AutoCloseable {
        private final MiniCluster flink = new MiniCluster(new MiniClusterConfiguration.Builder()
                .setNumTaskManagers(2)
                .setNumSlotsPerTaskManager(PARALLELISM)
                .withRandomPorts()
                .setHaServices(MiniCluster.HaServices.WITH_LEADERSHIP_CONTROL)
                .build());
        private final JobID job;

        /** The job begins anew, or from a checkpoint. */
        Cluster(String broker, Order order, Path checkpoints, String checkpoint) throws Exception {
            flink.start();
            job = begin(flink, broker, order, checkpoints, checkpoint);
        }

        /** Another JobManager takes the job over, from its last checkpoint. */
        void loseJobManager() throws Exception {
            HaLeadershipControl leaders = flink.getHaLeadershipControl().orElseThrow();
            leaders.revokeJobMasterLeadership(job).get();
            leaders.grantJobMasterLeadership(job).get();
        }

        void loseTaskManager() throws Exception {
            flink.terminateTaskManager(0).get();
            flink.startTaskManager();
        }

        @Override
        public void close() throws Exception {
            flink.closeAsync().get();
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Waits until each reader has emitted something, though there are fewer lanes. */
    private static void awaitAllEmit() {
        long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        for (int reader = 0; reader < PARALLELISM; reader++) {
            while (EMITTED.get(reader) == 0) {
                assertTrue(System.nanoTime() < deadline, "not all readers emit: " + EMITTED);
                LockSupport.parkNanos(1_000_000);
            }
        }
    }

    private static void awaitSeen(int records) {
        long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        while (SEEN.get() < records) {
            assertTrue(System.nanoTime() < deadline, "only " + SEEN.get() + " records were seen");
            LockSupport.parkNanos(1_000_000);
        }
    }

    /** Waits for a checkpoint that began after the call, and at which the job had begun to count. */
    private static void awaitCheckpoint(Path checkpoints) throws IOException {
        int before = -1;
        long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        while (true) {
            try {
                String newest = newest(checkpoints);
                int number = newest == null ? 0 : Integer.parseInt(newest.replaceAll(".*chk-|/$", ""));
                before = before < 0 ? number : before;
                // The next one may be under way.
                if (number >= before + 2 && WITH_RECORDS.contains((long) number)) {
                    return;
                }
            } catch (UncheckedIOException error) {
                // An older one was deleted meanwhile: there is a newer one.
            }
            assertTrue(System.nanoTime() < deadline, "no checkpoint is completed");
            LockSupport.parkNanos(1_000_000);
        }
    }

    /** The newest checkpoint that is complete; null: none is. */
    private static String newest(Path checkpoints) throws IOException {
        try (Stream<Path> files = Files.walk(checkpoints)) {
            return files.filter(file -> file.endsWith("_metadata"))
                    .map(Path::getParent)
                    .max(Comparator.comparing(chk -> Integer.parseInt(chk.getFileName().toString().substring(4))))
                    .map(chk -> chk.toUri().toString())
                    .orElse(null);
        }
    }

    @ParameterizedTest
    @EnumSource(value = Order.class, names = {"LANE", "KEY"})
    void eachKeysRecordsPassInOrderAndOnce(Order order, @TempDir Path checkpoints) throws Exception {
        allDone = new CountDownLatch(1);
        DONE.clear();
        WRONG.set(null);
        FAILURES.set(0);
        SEEN.set(0);
        FROM_START.clear();
        WITH_RECORDS.clear();
        IntStream.range(0, PARALLELISM).forEach(reader -> EMITTED.set(reader, 0));
        Cluster cluster = null;
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
                Producer producer = new Producer("s", created(admin, broker, order == Order.KEY ? 1 : 2))) {
            for (int count = 0; count < HEAVY_RECORDS; count++) {
                producer.append(bytes(HEAVY), bytes(HEAVY + " " + count));
            }
            producer.flush();
            cluster = new Cluster(broker.address(), order, checkpoints, null);
            Map<Integer, Integer> growth = Map.of(EACH / 4, 6, EACH / 2, 12);
            for (int count = 0; count < EACH; count++) {
                for (int key = 0; key < KEYS; key++) {
                    producer.append(bytes("key-" + key), bytes("key-" + key + " " + count));
                }
                if (order == Order.KEY && count == EACH / 5) {
                    producer.flush();
                    awaitAllEmit();
                }
                if (growth.containsKey(count)) {
                    producer.flush();
                    admin.growStream("s", growth.get(count));
                }
                if (count == EACH / 3) {
                    awaitSeen(1_000);
                    cluster.loseTaskManager();
                    broker.kill();
                    broker.restart();
                }
                if (count == EACH * 5 / 12) {
                    awaitCheckpoint(checkpoints);
                    FROM_START.clear();
                    cluster.loseJobManager();
                }
                if (count == EACH * 2 / 3) {
                    awaitSeen(HEAVY_RECORDS / 2);
                    awaitCheckpoint(checkpoints);
                    assertTrue(FROM_START.size() < KEYS + 1, "the job began anew with another JobManager");
                    cluster.close();
                    broker.kill();
                    String checkpoint = newest(checkpoints);
                    assertTrue(checkpoint != null, "no checkpoint was completed");
                    broker.restart();
                    FROM_START.clear();
                    cluster = new Cluster(broker.address(), order, checkpoints, checkpoint);
                }
            }
            producer.flush();
            assertTrue(allDone.await(LONG ? 500 : 200, TimeUnit.SECONDS), "keys that are done: " + DONE.size());
            assertEquals(null, WRONG.get());
            assertEquals(TASK_FAILURES, FAILURES.get());
            assertTrue(FROM_START.size() < KEYS + 1, "the job began anew in place of going on");
        } finally {
            if (cluster != null) {
                cluster.close();
            }
        }
    }

    private static ProducerOptions created(Admin admin, TestBroker broker, int lanes) throws IOException {
        admin.createStream("s", 1, lanes);
        return ProducerOptions.to(broker.address()).withBatchSize(1 << 10);
    }

    private static JobID begin(MiniCluster flink, String address, Order order, Path checkpoints, String checkpoint) throws Exception {
        Configuration config = new Configuration();
        config.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(200));
        config.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, checkpoints.toUri().toString());
        config.set(CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        config.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 100);
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, Duration.ofMillis(50));
        if (checkpoint != null) {
            config.set(StateRecoveryOptions.SAVEPOINT_PATH, checkpoint);
        }
        StreamExecutionEnvironment env =
                new TestStreamEnvironment(flink, config, PARALLELISM, List.of(), List.of());
        KeraSource<String> source = KeraSource.<String>builder()
                .bootstrap(address)
                .streams("s")
                .discovery(Duration.ofMillis(200))
                .order(order)
                .group(order == Order.LANE ? "engine" : null)
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .build(env.getConfiguration());
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "s")
                .uid("source")
                .map(new Counted())
                .keyBy(record -> record.substring(0, record.indexOf(' ')))
                .process(new InOrder())
                .uid("in-order")
                .print();
        return env.executeAsync("growing lanes").getJobID();
    }
}
