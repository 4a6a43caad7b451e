package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.KeraException;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.TestBroker;
import io.kera.client.Transactions;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.ExecutionException;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.testutils.MiniClusterResourceConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.test.junit5.InjectMiniCluster;
import org.apache.flink.test.junit5.MiniClusterExtension;
import org.apache.flink.util.Collector;
import org.apache.flink.util.ExceptionUtils;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;

/** A job goes on with more subtasks, and then with fewer: nothing is lost or doubled, and keys keep their order. */
@EnabledIfSystemProperty(named = "kera.program", matches = ".+")
@Timeout(300)
class RescaleTest {
    private static final int KEYS = 50;
    private static final int PART = 40 * KEYS;
    private static final int MOST = 4;

    @RegisterExtension
    private static final MiniClusterExtension FLINK = new MiniClusterExtension(new MiniClusterResourceConfiguration.Builder()
            .setNumberTaskManagers(1)
            .setNumberSlotsPerTaskManager(MOST)
            .build());

    @TempDir
    private Path home;

    /** Fails the job when a record of a key is not the one after the last. Records are {@code key:number}. */
    private static final class InOrder extends KeyedProcessFunction<String, String, String> {
        private static final long serialVersionUID = 1L;
        private transient ValueState<Integer> next;

        @Override
        public void open(OpenContext context) {
            next = getRuntimeContext().getState(new ValueStateDescriptor<>("next", Integer.class));
        }

        @Override
        public void processElement(String record, Context context, Collector<String> out) throws Exception {
            int expected = next.value() == null ? 0 : next.value();
            if (!record.equals(context.getCurrentKey() + ":" + expected)) {
                throw new IllegalStateException(record + " came in place of number " + expected);
            }
            next.update(expected + 1);
            out.collect(record);
        }
    }

    @Test
    void theStateOfAJobFitsAnyNumberOfSubtasks(@InjectMiniCluster MiniCluster flink) throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, MOST);
            admin.createStream("t", 2, 2);
            produce(broker, 0);
            JobClient job = start(broker, 2, null);
            commitUntil(flink, admin, job, PART);
            // Some of these are in the savepoint, or none, or all.
            produce(broker, 1);
            String state = stop(job);
            produce(broker, 2);
            job = start(broker, MOST, state);
            commitUntil(flink, admin, job, 3 * PART);
            produce(broker, 3);
            state = stop(job);
            // As the last of its subtasks leaves it when its process is killed.
            Producer killed = new Producer("t", ProducerOptions.to(broker.address()).withTransactionalId("job/3/1000"));
            try {
                killed.beginTransaction();
                killed.append(null, new byte[] {'x'});
                killed.flush();
                assertEquals(1, transactions.open("job/3/").size());
                produce(broker, 4);
                job = start(broker, 1, state);
                commitUntil(flink, admin, job, 5 * PART);
                assertEquals(List.of(), transactions.open("job/3/"));
            } finally {
                // It is told that somebody has ended its transaction.
                assertThrows(KeraException.class, killed::close);
            }
            stop(job);
            assertEquals(5 * PART, ExactlyOnceTest.written(admin));
        }
    }

    private String stop(JobClient job) throws Exception {
        return job.stopWithSavepoint(false, home.toString(), SavepointFormatType.CANONICAL).get();
    }

    /** Has checkpoints taken until so many records are there. */
    private static void commitUntil(MiniCluster flink, Admin admin, JobClient job, int records) throws Exception {
        while (ExactlyOnceTest.written(admin) < records) {
            try {
                flink.triggerCheckpoint(job.getJobID()).get();
            } catch (ExecutionException error) {
                // One of its tasks may only be starting.
                assertFalse(job.getJobStatus().get().isGloballyTerminalState(), () -> why(job));
            }
        }
        assertEquals(records, ExactlyOnceTest.written(admin));
    }

    private static String why(JobClient job) {
        try {
            return String.valueOf(job.getJobExecutionResult().get());
        } catch (ExecutionException | InterruptedException error) {
            return ExceptionUtils.stringifyException(error);
        }
    }

    private static void produce(TestBroker broker, int part) throws Exception {
        try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()).withBatchSize(1 << 10))) {
            for (int n = part * PART; n < part * PART + PART; n++) {
                String key = "k" + n % KEYS;
                producer.append(key.getBytes(StandardCharsets.UTF_8), (key + ":" + n / KEYS).getBytes(StandardCharsets.UTF_8));
            }
        }
    }

    /** Checkpoints are taken by hand alone. */
    private static JobClient start(TestBroker broker, int subtasks, String savepoint) throws Exception {
        Configuration config = new Configuration();
        config.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofHours(1));
        config.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        if (savepoint != null) {
            config.set(StateRecoveryOptions.SAVEPOINT_PATH, savepoint);
        }
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(config);
        env.setParallelism(subtasks);
        env.setMaxParallelism(64);
        KeraSource<String> source = KeraSource.<String>builder()
                .bootstrap(broker.address())
                .streams("s")
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .build(env.getConfiguration());
        KeraSink<String> sink = KeraSink.<String>builder()
                .bootstrap(broker.address())
                .stream("t")
                .serializer(KeraSerializer.values(new SimpleStringSchema()))
                .guarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .transactionalIdPrefix("job")
                .build();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "s").uid("s")
                .keyBy(record -> record.substring(0, record.indexOf(':')))
                .process(new InOrder()).uid("order")
                .sinkTo(sink).uid("t");
        return env.executeAsync();
    }
}
