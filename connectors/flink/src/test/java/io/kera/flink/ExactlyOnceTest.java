package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.KeraRecord;
import io.kera.client.LaneReader;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.StreamInfo;
import io.kera.client.TestBroker;
import io.kera.client.TransactionHandle;
import io.kera.client.Transactions;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.connector.sink2.Committer;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.runtime.highavailability.nonha.embedded.HaLeadershipControl;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.testutils.MiniClusterResourceConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.test.junit5.InjectMiniCluster;
import org.apache.flink.test.junit5.MiniClusterExtension;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.extension.RegisterExtension;

/** What a job writes exactly once is there once, whatever fails. */
@EnabledIfSystemProperty(named = "kera.program", matches = ".+")
@Timeout(240)
class ExactlyOnceTest {
    private static final int PART = 5_000;
    private static final int RECORDS = 4 * PART;
    private static final int SUBTASKS = 4;
    private static final AtomicInteger SEEN = new AtomicInteger();

    @RegisterExtension
    private static final MiniClusterExtension FLINK = new MiniClusterExtension(new MiniClusterResourceConfiguration.Builder()
            .setNumberTaskManagers(2)
            .setNumberSlotsPerTaskManager(SUBTASKS / 2)
            .withHaLeadershipControl()
            .build());

    /** A step that takes its time, and fails once. */
    private static final class Slow extends RichMapFunction<String, String> {
        private static final long serialVersionUID = 1L;
        private int count;

        @Override
        public String map(String record) {
            if (++count % 5 == 0) {
                LockSupport.parkNanos(1_000_000);
            }
            if (SEEN.incrementAndGet() == RECORDS / 3) {
                throw new IllegalStateException("a failure of the test");
            }
            return record;
        }
    }

    @Test
    void eachRecordIsThereOnceWhateverFails(@InjectMiniCluster MiniCluster flink) throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 4);
            admin.createStream("t", 2, 2);
            produce(broker.address(), 0);
            JobClient job = start(broker.address());
            int failures = 0;
            int found;
            while ((found = written(admin)) < RECORDS) {
                if (failures < 3 && found > failures * PART + PART / 2) {
                    failures++;
                    // Each failure has records to hit, however far the job is.
                    produce(broker.address(), failures);
                    if (failures == 1) {
                        flink.terminateTaskManager(0).get();
                        flink.startTaskManager();
                    } else if (failures == 2) {
                        broker.kill();
                        broker.restart();
                    } else {
                        HaLeadershipControl leaders = flink.getHaLeadershipControl().orElseThrow();
                        leaders.revokeJobMasterLeadership(job.getJobID()).get();
                        leaders.grantJobMasterLeadership(job.getJobID()).get();
                    }
                }
                LockSupport.parkNanos(20_000_000);
            }
            assertTrue(SEEN.get() > RECORDS, "nothing was written again");
            job.cancel().get();
            // What was written twice would be in a transaction that is open, or left.
            for (Transactions.Open open : transactions.open("job/")) {
                transactions.abortAll(open);
            }
            assertEquals(RECORDS, written(admin));
        }
    }

    /** One part of the records that the job reads. */
    private static void produce(String address, int part) throws IOException {
        try (Producer producer = new Producer("s", ProducerOptions.to(address).withBatchSize(8 << 10))) {
            for (int n = part * PART; n < part * PART + PART; n++) {
                producer.append(null, String.valueOf(n).getBytes(StandardCharsets.UTF_8));
            }
        }
    }

    private static JobClient start(String address) throws Exception {
        Configuration config = new Configuration();
        config.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(200));
        config.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 100);
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, Duration.ofMillis(50));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(config);
        env.setParallelism(SUBTASKS);
        KeraSource<String> source = KeraSource.<String>builder()
                .bootstrap(address)
                .streams("s")
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .build(env.getConfiguration());
        KeraSink<String> sink = KeraSink.<String>builder()
                .bootstrap(address)
                .stream("t")
                .serializer(KeraSerializer.values(new SimpleStringSchema()))
                .guarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .transactionalIdPrefix("job")
                .build();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "s").map(new Slow()).sinkTo(sink);
        return env.executeAsync();
    }

    /** How many records readers see, each once. */
    static int written(Admin admin) throws IOException {
        return found(admin).size();
    }

    /** The records that readers see, each once. */
    static Set<String> found(Admin admin) throws IOException {
        Set<String> found = new HashSet<>();
        StreamInfo stream = admin.stream("t");
        for (Admin.LaneBounds lane : admin.bounds("t")) {
            try (LaneReader reader = new LaneReader(
                    stream, lane.streamlet(), lane.lane(), lane.start(), lane.head(), ConnectOptions.DEFAULT)) {
                // To where the oldest open transaction begins.
                long before;
                do {
                    before = reader.position();
                    for (KeraRecord record : reader.read(1 << 20, 0)) {
                        String value = new String(record.value(), StandardCharsets.UTF_8);
                        assertTrue(found.add(value), "record " + value + " is there twice");
                    }
                } while (!reader.finished() && reader.position() > before);
            }
        }
        return found;
    }

    /** What a committer is asked for. */
    private static final class Asked implements Committer.CommitRequest<TransactionHandle> {
        private final TransactionHandle handle;
        private boolean later;

        Asked(TransactionHandle handle) {
            this.handle = handle;
        }

        @Override
        public TransactionHandle getCommittable() {
            return handle;
        }

        @Override
        public int getNumberOfRetries() {
            return 0;
        }

        @Override
        public void signalFailedWithKnownReason(Throwable why) {
            throw new AssertionError("a job goes on without its records", why);
        }

        @Override
        public void signalFailedWithUnknownReason(Throwable why) {
            throw new AssertionError("a job goes on without its records", why);
        }

        @Override
        public void retryLater() {
            later = true;
        }

        @Override
        public void updateAndRetryLater(TransactionHandle other) {
            throw new AssertionError("a transaction has one handle");
        }

        @Override
        public void signalAlreadyCommitted() {
            throw new AssertionError("committing again is a commit");
        }
    }

    /** The checkpoint that has it took longer than brokers keep what is prepared. */
    @Test
    void aCommitOfWhatTheBrokerHasAbortedFailsWithWords() throws Exception {
        try (TestBroker broker = TestBroker.start("--transactions-max-prepared", "1s");
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("t", 1, 1);
            TransactionHandle handle;
            ProducerOptions options = ProducerOptions.to(broker.address()).withTransactionalId("job/0/1");
            try (Producer producer = new Producer("t", options)) {
                producer.beginTransaction();
                producer.append(null, new byte[] {'x'});
                handle = producer.prepareTransaction();
            }
            while (!transactions.open("job/").isEmpty()) {
                LockSupport.parkNanos(10_000_000);
            }
            TransactionCommitter committer =
                    new TransactionCommitter(new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT));
            try (committer) {
                Asked asked = new Asked(handle);
                String told = assertThrows(IOException.class, () -> {
                    do {
                        // While the abort is under way it is to be tried again.
                        asked.later = false;
                        committer.commit(List.of(asked));
                    } while (asked.later);
                }).getMessage();
                assertTrue(told.startsWith("records are lost: the transaction " + handle), told);
                assertTrue(told.contains("was aborted") && told.contains("transactions.max_prepared"), told);
            }
            assertEquals(Set.of(), found(admin));
        }
    }

    @Test
    void handlesAreKeptInCheckpoints() throws Exception {
        TransactionHandle handle = new TransactionHandle("job/0/7", 4711, (short) 2, 9);
        TransactionHandleSerializer serializer = new TransactionHandleSerializer();
        // As version 1 wrote it.
        byte[] kept = {10, 7, 'j', 'o', 'b', '/', '0', '/', '7', 16, (byte) 0xe7, 36, 24, 2, 32, 9};
        assertEquals(handle, serializer.deserialize(1, kept));
        assertEquals(handle, serializer.deserialize(serializer.getVersion(), serializer.serialize(handle)));
    }
}
