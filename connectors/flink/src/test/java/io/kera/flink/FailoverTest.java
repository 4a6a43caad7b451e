package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.TestBroker;
import io.kera.client.TestCluster;
import io.kera.client.Transactions;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.runtime.testutils.MiniClusterResourceConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.test.junit5.MiniClusterExtension;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.extension.RegisterExtension;

/** A job writes exactly once to three brokers, of which each in turn is killed: others own its lanes then. */
@EnabledIfSystemProperty(named = "kera.long", matches = "true")
@Timeout(600)
class FailoverTest {
    private static final int PART = 3_000;
    private static final int PARTS = 4;

    @RegisterExtension
    private static final MiniClusterExtension FLINK = new MiniClusterExtension(new MiniClusterResourceConfiguration.Builder()
            .setNumberTaskManagers(1)
            .setNumberSlotsPerTaskManager(2)
            .build());

    /** Its time, so that a kill finds the job at work. */
    private static final class Slow implements MapFunction<String, String> {
        private static final long serialVersionUID = 1L;
        private int count;

        @Override
        public String map(String record) {
            if (++count % 5 == 0) {
                LockSupport.parkNanos(1_000_000);
            }
            return record;
        }
    }

    @Test
    void eachRecordIsThereOnceWhoeverOwnsTheLanes() throws Exception {
        try (TestCluster cluster = TestCluster.start(3);
                Admin admin = new Admin(cluster.addresses(), ConnectOptions.DEFAULT);
                Transactions transactions = new Transactions(cluster.addresses(), ConnectOptions.DEFAULT)) {
            cluster.createStream("s", "--replicas", "3", "--streamlets", "3");
            cluster.createStream("t", "--replicas", "3", "--streamlets", "3");
            produce(cluster.addresses(), 0);
            JobClient job = start(cluster.addresses());
            for (int part = 1; part < PARTS; part++) {
                await(admin, part * PART - PART / 2);
                String owner = admin.stream("t").owner(part % 3);
                TestBroker killed = cluster.at(owner);
                killed.kill();
                // The job goes on without it.
                produce(cluster.addresses(), part);
                await(admin, (part + 1) * PART);
                assertNotEquals(owner, admin.stream("t").owner(part % 3));
                killed.restart();
            }
            job.cancel().get();
            // What was written twice would be in a transaction that is open, or left.
            for (Transactions.Open open : transactions.open("job/")) {
                transactions.abortAll(open);
            }
            assertEquals(PARTS * PART, ExactlyOnceTest.written(admin));
        }
    }

    private static void await(Admin admin, int records) {
        while (true) {
            try {
                if (ExactlyOnceTest.written(admin) >= records) {
                    return;
                }
            } catch (IOException changing) {
                // Its owner is away, or has just changed.
            }
            LockSupport.parkNanos(20_000_000);
        }
    }

    private static void produce(List<String> addresses, int part) throws Exception {
        ProducerOptions options = ProducerOptions.to(addresses.toArray(new String[0])).withBatchSize(8 << 10);
        try (Producer producer = new Producer("s", options)) {
            for (int n = part * PART; n < part * PART + PART; n++) {
                producer.append(null, String.valueOf(n).getBytes(StandardCharsets.UTF_8));
            }
        }
    }

    private static JobClient start(List<String> addresses) throws Exception {
        Configuration config = new Configuration();
        config.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(200));
        config.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 1_000);
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, Duration.ofMillis(50));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(config);
        env.setParallelism(2);
        String[] bootstrap = addresses.toArray(new String[0]);
        KeraSource<String> source = KeraSource.<String>builder()
                .bootstrap(bootstrap)
                .streams("s")
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .build(env.getConfiguration());
        KeraSink<String> sink = KeraSink.<String>builder()
                .bootstrap(bootstrap)
                .stream("t")
                .serializer(KeraSerializer.values(new SimpleStringSchema()))
                .guarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .transactionalIdPrefix("job")
                .build();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "s").map(new Slow()).sinkTo(sink);
        return env.executeAsync();
    }
}
