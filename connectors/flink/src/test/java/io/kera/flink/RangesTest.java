package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.TestBroker;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.runtime.testutils.MiniClusterResourceConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
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
    private static final int READERS = 8;
    private static final AtomicInteger SEEN = new AtomicInteger();
    private static TestBroker broker;

    @RegisterExtension
    private static final MiniClusterExtension FLINK = new MiniClusterExtension(new MiniClusterResourceConfiguration.Builder()
            .setNumberTaskManagers(2)
            .setNumberSlotsPerTaskManager(READERS / 2)
            .build());

    /** A step that waits, fails once, and kills the broker once. */
    private static final class Slow extends RichMapFunction<String, String> {
        private static final long serialVersionUID = 1L;
        private int count;

        @Override
        public String map(String record) throws Exception {
            if (++count % 20 == 0) {
                LockSupport.parkNanos(1_000_000);
            }
            int seen = SEEN.incrementAndGet();
            if (seen == RECORDS / 3) {
                throw new IllegalStateException("a failure of the test");
            }
            if (seen == RECORDS / 2) {
                broker.kill();
                broker.restart();
            }
            return getRuntimeContext().getTaskInfo().getIndexOfThisSubtask() + " " + record.substring(0, record.indexOf(' '));
        }
    }

    @Test
    void readersShareLanesAndEachRecordPassesOnce() throws Exception {
        try (TestBroker started = TestBroker.start();
                Admin admin = new Admin(List.of(started.address()), ConnectOptions.DEFAULT)) {
            broker = started;
            admin.createStream("s", 1, 2);
            try (Producer producer =
                    new Producer("s", ProducerOptions.to(broker.address()).withBatchSize(16 << 10))) {
                for (int n = 0; n < RECORDS; n++) {
                    String text = n + " " + "x".repeat(90);
                    producer.append(null, text.getBytes(StandardCharsets.UTF_8));
                }
            }
            Set<String> found = new HashSet<>();
            Map<String, Integer> bySubtask = new TreeMap<>();
            try (CloseableIterator<String> results = run(broker.address())) {
                while (results.hasNext()) {
                    String[] parts = results.next().split(" ");
                    assertTrue(found.add(parts[1]), "record " + parts[1] + " passed twice");
                    bySubtask.merge(parts[0], 1, Integer::sum);
                }
            }
            assertEquals(RECORDS, found.size());
            assertTrue(SEEN.get() > RECORDS, "nothing was read again: the failure came too late");
            assertEquals(READERS, bySubtask.size(), bySubtask.toString());
            bySubtask.forEach((subtask, count) ->
                    assertTrue(count >= RECORDS / 20, "subtask " + subtask + " emitted " + count + " of " + bySubtask));
        }
    }

    private static CloseableIterator<String> run(String address) throws Exception {
        Configuration config = new Configuration();
        config.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(100));
        config.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 100);
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, Duration.ofMillis(50));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(config);
        env.setParallelism(READERS);
        KeraSource<String> source = KeraSource.<String>builder()
                .bootstrap(address)
                .streams("s")
                .order(Order.NONE)
                .bounded()
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .build(env.getConfiguration());
        return env.fromSource(source, WatermarkStrategy.noWatermarks(), "s").map(new Slow()).executeAndCollect();
    }
}
