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
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.runtime.testutils.MiniClusterResourceConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.test.junit5.MiniClusterExtension;
import org.apache.flink.util.Collector;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Lanes grow under a job whose tasks and broker fail: each key's records arrive at an operator in order, each once. */
@EnabledIfSystemProperty(named = "kera.program", matches = ".+")
@Timeout(300)
class GrowingLanesTest {
    private static final int KEYS = 40;
    private static final int EACH = 600;

    @RegisterExtension
    private static final MiniClusterExtension FLINK = new MiniClusterExtension(new MiniClusterResourceConfiguration.Builder()
            .setNumberTaskManagers(1)
            .setNumberSlotsPerTaskManager(4)
            .build());

    private static final Set<String> DONE = ConcurrentHashMap.newKeySet();
    private static final AtomicReference<String> WRONG = new AtomicReference<>();
    private static final AtomicInteger FAILURES = new AtomicInteger();
    private static volatile CountDownLatch allDone;

    /** Counts a key's records, and fails at some of them. */
    private static final class InOrder extends KeyedProcessFunction<String, String, String> {
        private static final long serialVersionUID = 1L;
        private transient ValueState<Integer> next;

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
            if (context.getCurrentKey().equals("key-0") && count % 200 == 150 && FAILURES.get() < count / 200 + 1) {
                FAILURES.incrementAndGet();
                throw new IllegalStateException("a failure of the test");
            }
            if (count == EACH - 1 && DONE.add(context.getCurrentKey()) && DONE.size() == KEYS) {
                allDone.countDown();
            }
        }
    }

    @Test
    void eachKeysRecordsPassInOrderAndOnce() throws Exception {
        allDone = new CountDownLatch(1);
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 2);
            JobClient job = begin(broker.address());
            try (Producer producer =
                    new Producer("s", ProducerOptions.to(broker.address()).withBatchSize(1 << 10))) {
                Map<Integer, Integer> growth = Map.of(EACH / 4, 6, EACH / 2, 12);
                for (int count = 0; count < EACH; count++) {
                    for (int key = 0; key < KEYS; key++) {
                        String text = "key-" + key + " " + count;
                        producer.append(("key-" + key).getBytes(StandardCharsets.UTF_8), text.getBytes(StandardCharsets.UTF_8));
                    }
                    if (growth.containsKey(count)) {
                        producer.flush();
                        admin.growStream("s", growth.get(count));
                    }
                    if (count == EACH * 2 / 3) {
                        broker.kill();
                        broker.restart();
                    }
                }
                producer.flush();
            }
            assertTrue(allDone.await(200, TimeUnit.SECONDS), "keys that are done: " + DONE.size());
            assertEquals(null, WRONG.get());
            assertEquals(3, FAILURES.get());
            job.cancel().get();
        }
    }

    private static JobClient begin(String address) throws Exception {
        Configuration config = new Configuration();
        config.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(200));
        config.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 100);
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, Duration.ofMillis(50));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(config);
        env.setParallelism(3);
        KeraSource<String> source = KeraSource.<String>builder()
                .bootstrap(address)
                .streams("s")
                .discovery(Duration.ofMillis(200))
                .group("engine")
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .build(env.getConfiguration());
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "s")
                .keyBy(record -> record.substring(0, record.indexOf(' ')))
                .process(new InOrder())
                .print();
        return env.executeAsync();
    }
}
