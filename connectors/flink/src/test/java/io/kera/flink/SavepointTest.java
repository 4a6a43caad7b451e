package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.KeraException;
import io.kera.client.LanePosition;
import io.kera.client.Pin;
import io.kera.client.Pinning;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.TestBroker;
import io.kera.client.Transactions;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
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
import org.apache.flink.test.junit5.InjectMiniCluster;
import org.apache.flink.test.junit5.MiniClusterExtension;
import org.apache.flink.util.ExceptionUtils;
import org.apache.flink.util.FlinkRuntimeException;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A job starts from the savepoint of one that still runs: neither loses records, and none is written twice. */
@EnabledIfSystemProperty(named = "kera.program", matches = ".+")
@Timeout(300)
class SavepointTest {
    private static final int PART = 500;
    private static final Duration PATIENCE = Duration.ofMinutes(1);

    @RegisterExtension
    private static final MiniClusterExtension FLINK = new MiniClusterExtension(new MiniClusterResourceConfiguration.Builder()
            .setNumberTaskManagers(1)
            .setNumberSlotsPerTaskManager(2)
            .build());

    @TempDir
    private Path home;

    private MiniCluster flink;

    @BeforeEach
    void meet(@InjectMiniCluster MiniCluster cluster) {
        flink = cluster;
    }

    @Test
    void aJobThatRunsKeepsWhatItWrites() throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            admin.createStream("t", 1, 1);
            produce(broker, 0);
            JobClient blue = start(broker, "blue", null, false);
            isOpen(transactions, "blue/");
            String early = blue.triggerSavepoint(home.toString(), SavepointFormatType.CANONICAL).get();
            // What it writes from now on is not in the savepoint.
            produce(broker, 1);
            isOpen(transactions, "blue/");
            JobClient green = start(broker, "green", early, false);
            isRefused(green, transactions, "green/");
            commitUntil(admin, blue, 2 * PART);
            String late = blue.stopWithSavepoint(false, home.toString(), SavepointFormatType.CANONICAL).get();
            produce(broker, 2);
            // Nothing of the other job is open behind its last savepoint.
            JobClient next = start(broker, "green", late, false);
            isOpen(transactions, "green/");
            commitUntil(admin, next, 3 * PART);
            cancel(next);
        }
    }

    @Test
    void whatAJobLeftThatIsGoneIsAborted() throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            admin.createStream("t", 1, 1);
            produce(broker, 0);
            JobClient blue = start(broker, "blue", null, false);
            isOpen(transactions, "blue/");
            String early = blue.triggerSavepoint(home.toString(), SavepointFormatType.CANONICAL).get();
            produce(broker, 1);
            isOpen(transactions, "blue/");
            cancel(blue);
            // As a process leaves it that is killed.
            ProducerOptions options = ProducerOptions.to(broker.address()).withTransactionalId("blue/0/1000");
            Producer killed = new Producer("t", options);
            try {
                killed.beginTransaction();
                killed.append(null, new byte[] {'x'});
                killed.flush();
                isRefused(start(broker, "green", early, false), transactions, "green/");
                JobClient green = start(broker, "green", early, true);
                isOpen(transactions, "green/");
                assertEquals(List.of(), transactions.open("blue/"));
                commitUntil(admin, green, 2 * PART);
                cancel(green);
            } finally {
                // It is told that somebody has ended its transaction.
                assertThrows(KeraException.class, killed::close);
            }
        }
    }

    /** Records that come between the savepoint and the next start are neither lost, nor those of before it read. */
    @ParameterizedTest
    @EnumSource(Order.class)
    void aJobThatHasReadNothingGoesOnWhereItBegan(Order order) throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 2);
            admin.createStream("t", 1, 1);
            produce(broker, 0);
            JobClient first = copy(broker, order, null);
            while (first.getJobStatus().get() == JobStatus.INITIALIZING) {
                LockSupport.parkNanos(1_000_000);
            }
            RangesTest.awaitRunning(flink, first.getJobID());
            String savepoint = first.stopWithSavepoint(false, home.toString(), SavepointFormatType.CANONICAL).get();
            assertEquals(Set.of(), ExactlyOnceTest.found(admin), "it begins behind what is there");
            produce(broker, 1);
            JobClient next = copy(broker, order, savepoint);
            while (ExactlyOnceTest.found(admin).size() < PART) {
                LockSupport.parkNanos(10_000_000);
            }
            cancel(next);
            Set<String> all = IntStream.range(PART, 2 * PART).mapToObj(String::valueOf).collect(Collectors.toSet());
            assertEquals(all, ExactlyOnceTest.found(admin));
        }
    }

    /** The pin stands where the last checkpoint or savepoint stands that the job would go on from, and outlives the job. */
    @ParameterizedTest
    @EnumSource(Order.class)
    void whatACheckpointNeedsIsPinned(Order order) throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 2);
            admin.createStream("t", 1, 1);
            JobClient job = copy(broker, order, null, Pinning.named("copy").waiting().maxAge(Duration.ofHours(5)).required());
            while (job.getJobStatus().get() == JobStatus.INITIALIZING) {
                LockSupport.parkNanos(1_000_000);
            }
            RangesTest.awaitRunning(flink, job.getJobID());
            flink.triggerCheckpoint(job.getJobID()).get();
            awaitPin(admin, heads(admin));
            produce(broker, 0);
            while (ExactlyOnceTest.found(admin).size() < PART) {
                LockSupport.parkNanos(10_000_000);
            }
            List<LanePosition> middle = heads(admin);
            flink.triggerCheckpoint(job.getJobID()).get();
            Pin pin = awaitPin(admin, middle);
            assertEquals(List.of("copy", Pin.Policy.WAIT, Duration.ofHours(5)), List.of(pin.name(), pin.policy(), pin.maxAge()));
            assertEquals(job.getJobID(), flink.listJobs().get().stream()
                    .filter(status -> status.getJobName().equals(pin.job())).findAny().orElseThrow().getJobId());
            produce(broker, 1);
            while (ExactlyOnceTest.found(admin).size() < 2 * PART) {
                LockSupport.parkNanos(10_000_000);
            }
            String savepoint = job.triggerSavepoint(home.toString(), SavepointFormatType.CANONICAL).get();
            assertFalse(savepoint.isEmpty());
            assertEquals(List.of(pin), admin.pins("s").pins(), "the job would go on from its checkpoint");
            job.stopWithSavepoint(false, home.toString(), SavepointFormatType.CANONICAL).get();
            awaitPin(admin, heads(admin));
        }
    }

    private static List<LanePosition> heads(Admin admin) throws Exception {
        return admin.bounds("s").stream().map(lane -> new LanePosition(lane.streamlet(), lane.lane(), lane.head())).toList();
    }

    private static Pin awaitPin(Admin admin, List<LanePosition> positions) throws Exception {
        long until = System.nanoTime() + PATIENCE.toNanos();
        while (true) {
            List<Pin> pins = List.copyOf(admin.pins("s").pins());
            for (Pin pin : pins) {
                if (Set.copyOf(pin.positions()).equals(Set.copyOf(positions))) {
                    return pin;
                }
            }
            assertTrue(System.nanoTime() < until, () -> "no pin came to " + positions + ": " + pins);
            LockSupport.parkNanos(10_000_000);
        }
    }

    private static SourceSettings pinned(TestBroker broker, Order order, boolean bounded, Pinning pinning) {
        KeraSourceBuilder<String> builder = KeraSource.<String>builder()
                .bootstrap(broker.address()).streams("s").order(order).pin(pinning).growth(Growth.UNORDERED)
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()));
        return (bounded ? builder.bounded() : builder).settings(new Configuration());
    }

    private static StreamEnumerator<?> enumerator(DirectContext context, SourceSettings settings, EnumeratorState state) throws Exception {
        StreamEnumerator<?> enumerator = settings.order() == Order.NONE
                ? new RangeEnumerator(context, settings, state) : new KeraEnumerator(context, settings, state);
        context.registerReader(0, "here");
        enumerator.start();
        return enumerator;
    }

    private static PositionsTaken taken(long checkpoint, Order order, long... positions) {
        List<LaneSplit> splits = IntStream.range(0, positions.length).mapToObj(lane -> order == Order.NONE
                ? LaneSplit.range("s", 0, lane, positions[lane], 1_000)
                : new LaneSplit("s", 0, lane, 0, positions[lane], LaneSplit.UNBOUNDED, false)).toList();
        return PositionsTaken.of(checkpoint, splits);
    }

    private static void complete(StreamEnumerator<?> enumerator, PositionsTaken taken) throws Exception {
        enumerator.snapshotState(taken.checkpoint());
        enumerator.handleSourceEvent(0, taken);
        enumerator.notifyCheckpointComplete(taken.checkpoint());
    }

    /** The enumerator does not know of lanes that were added just now; a checkpoint that does not complete counts nothing. */
    @Test
    void lanesThatWereAddedArePinnedWhereTheyBegin() throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 2);
            produce(broker, 0);
            DirectContext context = new DirectContext();
            try (StreamEnumerator<?> enumerator =
                    enumerator(context, pinned(broker, Order.LANE, false, Pinning.named("p").required()), null)) {
                admin.growStream("s", 3);
                produce(broker, 1);
                enumerator.addReader(0);
                enumerator.snapshotState(1);
                enumerator.handleSourceEvent(0, taken(1, Order.LANE, 100, 100));
                enumerator.notifyCheckpointAborted(1);
                // All records are in the first lane, and no pin stands above where a lane ends.
                complete(enumerator, taken(2, Order.LANE, 5, 0));
                awaitPin(admin, List.of(new LanePosition(0, 0, 5), new LanePosition(0, 1, 0), new LanePosition(0, 2, 0)));
                // Of a checkpoint before it, and again.
                complete(enumerator, taken(3, Order.LANE, 8, 0));
                awaitPin(admin, List.of(new LanePosition(0, 0, 8), new LanePosition(0, 1, 0), new LanePosition(0, 2, 0)));
                context.runCalls();
            }
        }
    }

    /** Somebody trims the stream below the job; a job that does not ask for it goes on, one that does fails. */
    @ParameterizedTest
    @EnumSource(Order.class)
    void aJobFailsForItsPinOnlyIfThatIsAskedFor(Order order) throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            produce(broker, 0);
            EnumeratorState state;
            DirectContext context = new DirectContext();
            try (StreamEnumerator<?> enumerator = enumerator(context, pinned(broker, order, false, Pinning.named("p")), null)) {
                enumerator.addReader(0);
                state = enumerator.snapshotState(1);
                broker.run("", "stream", "trim", "s", "--streamlet", "0", "--lane", "0", "--ordinal", "50");
                enumerator.handleSourceEvent(0, taken(1, order, 20));
                enumerator.notifyCheckpointComplete(1);
                awaitPin(admin, List.of(new LanePosition(0, 0, 50)));
                context.runCalls();
            }
            DirectContext strict = new DirectContext();
            try (StreamEnumerator<?> enumerator =
                    enumerator(strict, pinned(broker, order, false, Pinning.named("strict").required()), state)) {
                enumerator.addReader(0);
                complete(enumerator, taken(2, order, 20));
                String failed = assertThrows(FlinkRuntimeException.class, () -> {
                    while (true) {
                        strict.runCalls();
                    }
                }).getMessage();
                // Without order nothing is cut yet.
                int from = order == Order.NONE ? 0 : 20;
                assertTrue(failed.contains("lane s:0/0 lost records from ordinal " + from + " on"), failed);
            }
            DirectContext named = new DirectContext();
            try (StreamEnumerator<?> enumerator =
                    enumerator(named, pinned(broker, order, false, Pinning.named("x".repeat(201)).required()), state)) {
                enumerator.addReader(0);
                complete(enumerator, taken(2, order, 60));
                String failed = assertThrows(FlinkRuntimeException.class, () -> {
                    while (true) {
                        named.runCalls();
                    }
                }).getMessage();
                assertTrue(failed.contains("does not have the positions of the last checkpoint"), failed);
            }
        }
    }

    /** Of ranges a reader that has told nothing may hold any. */
    @Test
    void rangesArePinnedOnlyOnceEachReaderHasTold() throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            for (int told = 1; told <= 2; told++) {
                DirectContext context = new DirectContext(2);
                try (StreamEnumerator<?> enumerator = enumerator(context, pinned(broker, Order.NONE, false, Pinning.named("p")), null)) {
                    context.registerReader(1, "there");
                    enumerator.snapshotState(1);
                    for (int reader = 0; reader < told; reader++) {
                        enumerator.addReader(reader);
                        enumerator.handleSourceEvent(reader, taken(1, Order.NONE));
                    }
                    enumerator.notifyCheckpointComplete(1);
                }
                // What was begun before it was closed is done by then.
                assertEquals(told - 1, admin.pins("s").pins().size());
            }
        }
    }

    @ParameterizedTest
    @EnumSource(value = Order.class, names = {"LANE", "NONE"})
    void thePinOfABoundedSourceIsDeletedAtItsEndIfThatIsAskedFor(Order order) throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            for (boolean isDeleted : new boolean[] {false, true}) {
                Pinning pinning = isDeleted ? Pinning.named("p").deletedAtEnd() : Pinning.named("p");
                DirectContext context = new DirectContext();
                try (StreamEnumerator<?> enumerator = enumerator(context, pinned(broker, order, true, pinning), null)) {
                    enumerator.addReader(0);
                    complete(enumerator, PositionsTaken.of(1, List.of()));
                }
                // What was begun before it was closed is done by then.
                assertEquals(isDeleted ? 0 : 1, admin.pins("s").pins().size());
            }
        }
    }

    /** The last checkpoint of a job may begin before the enumerator hears that its readers have finished, and end behind that. */
    @Test
    void thePinIsDeletedThoughOnlyReadersKnowThatAllIsRead() throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            produce(broker, 0);
            for (boolean isRead : new boolean[] {false, true}) {
                DirectContext context = new DirectContext();
                try (StreamEnumerator<?> enumerator =
                        enumerator(context, pinned(broker, Order.LANE, true, Pinning.named("p").deletedAtEnd()), null)) {
                    enumerator.addReader(0);
                    LaneSplit split = context.getSplitAssignments().get(0).getAssignedSplits().get(0).at(PART);
                    complete(enumerator, PositionsTaken.of(1, List.of(isRead ? split.asFinished() : split)));
                }
                // What was begun before it was closed is done by then.
                assertEquals(isRead ? 0 : 1, admin.pins("s").pins().size());
            }
        }
    }

    private static JobClient copy(TestBroker broker, Order order, String savepoint) throws Exception {
        return copy(broker, order, savepoint, null);
    }

    /** A job that copies what comes after its start. */
    private static JobClient copy(TestBroker broker, Order order, String savepoint, Pinning pinning) throws Exception {
        Configuration config = new Configuration();
        config.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofHours(1));
        config.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        if (savepoint != null) {
            config.set(StateRecoveryOptions.SAVEPOINT_PATH, savepoint);
        }
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(config);
        env.setParallelism(2);
        KeraSourceBuilder<String> builder = KeraSource.<String>builder()
                .bootstrap(broker.address())
                .streams("s")
                .start(Start.latest())
                .order(order)
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()));
        if (pinning != null) {
            builder.pin(pinning);
        }
        KeraSource<String> source = builder.build(env.getConfiguration());
        KeraSink<String> sink = KeraSink.<String>builder()
                .bootstrap(broker.address())
                .stream("t")
                .serializer(KeraSerializer.values(new SimpleStringSchema()))
                .build();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "s").uid("s").sinkTo(sink).uid("t");
        return env.executeAsync();
    }

    /** A checkpoint that comes later than the transaction lasts: its records are gone, and the job says why. */
    @Test
    void aTransactionThatTimesOutBeforeItsCheckpointFailsTheJob() throws Exception {
        try (TestBroker broker = TestBroker.start();
                Admin admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            admin.createStream("s", 1, 1);
            admin.createStream("t", 1, 1);
            produce(broker, 0);
            JobClient job = start(broker, "late", null, sink -> sink.transactionTimeout(Duration.ofSeconds(2)));
            isOpen(transactions, "late/");
            while (!transactions.open("late/").isEmpty()) {
                LockSupport.parkNanos(10_000_000);
            }
            assertThrows(ExecutionException.class, () -> flink.triggerCheckpoint(job.getJobID()).get());
            Exception failed = assertThrows(ExecutionException.class, () -> job.getJobExecutionResult().get());
            String told = ExceptionUtils.stringifyException(failed);
            assertTrue(told.contains("the transaction late/0/1 was aborted before the checkpoint")
                    && told.contains("timeout of 2 s") && told.contains("sink.transaction-timeout"), told);
            assertEquals(Set.of(), ExactlyOnceTest.found(admin));
        }
    }

    /** Waits until the job fails, before it writes anything, and looks why. */
    private static void isRefused(JobClient job, Transactions transactions, String prefix) throws Exception {
        while (!job.getJobStatus().get().isGloballyTerminalState()) {
            assertEquals(List.of(), transactions.open(prefix));
            LockSupport.parkNanos(10_000_000);
        }
        Exception failed = assertThrows(ExecutionException.class, () -> job.getJobExecutionResult().get());
        String refused = ExceptionUtils.stringifyException(failed);
        assertTrue(refused.contains("blue/0/") && refused.contains("stop it with a savepoint"), refused);
    }

    /** Waits until it has ended too: a task that finds its broker gone keeps its slot as long as it tries to abort. */
    private static void cancel(JobClient job) throws Exception {
        job.cancel().get();
        while (!job.getJobStatus().get().isGloballyTerminalState()) {
            LockSupport.parkNanos(10_000_000);
        }
    }

    /** Waits until a job has a transaction that no checkpoint has prepared. */
    private static void isOpen(Transactions transactions, String prefix) throws Exception {
        while (transactions.open(prefix).stream().allMatch(Transactions.Open::prepared)) {
            LockSupport.parkNanos(10_000_000);
        }
    }

    /** Has checkpoints taken until so many records are there. Savepoints of a job that goes on commit nothing. */
    private void commitUntil(Admin admin, JobClient job, int records) throws Exception {
        while (ExactlyOnceTest.written(admin) < records) {
            try {
                flink.triggerCheckpoint(job.getJobID()).get();
            } catch (ExecutionException error) {
                // One of its tasks may only be starting.
                assertFalse(job.getJobStatus().get().isGloballyTerminalState(), error::toString);
            }
        }
        assertEquals(records, ExactlyOnceTest.written(admin));
    }

    private static void produce(TestBroker broker, int part) throws Exception {
        try (Producer producer = new Producer("s", ProducerOptions.to(broker.address()))) {
            for (int n = part * PART; n < part * PART + PART; n++) {
                producer.append(null, String.valueOf(n).getBytes(StandardCharsets.UTF_8));
            }
        }
    }

    /** Checkpoints are taken by hand alone. */
    private static JobClient start(TestBroker broker, String prefix, String savepoint, boolean abortFormer) throws Exception {
        return start(broker, prefix, savepoint, sink -> {
            if (abortFormer) {
                sink.abortFormer();
            }
        });
    }

    private static JobClient start(TestBroker broker, String prefix, String savepoint, Consumer<KeraSink.Builder<String>> more)
            throws Exception {
        Configuration config = new Configuration();
        config.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofHours(1));
        config.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        if (savepoint != null) {
            config.set(StateRecoveryOptions.SAVEPOINT_PATH, savepoint);
        }
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(config);
        env.setParallelism(1);
        KeraSource<String> source = KeraSource.<String>builder()
                .bootstrap(broker.address())
                .streams("s")
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()))
                .build(env.getConfiguration());
        KeraSink.Builder<String> sink = KeraSink.<String>builder()
                .bootstrap(broker.address())
                .stream("t")
                .serializer(KeraSerializer.values(new SimpleStringSchema()))
                .guarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .transactionalIdPrefix(prefix);
        more.accept(sink);
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "s").uid("s").sinkTo(sink.build()).uid("t");
        return env.executeAsync();
    }
}
