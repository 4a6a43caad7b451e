package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Consumer groups and pins as {@link Admin} shows and changes them. */
@Timeout(120)
class GroupsTest {
    private static final OptionalLong NOTHING = OptionalLong.empty();
    private static TestBroker broker;
    private static Admin admin;

    @BeforeAll
    static void start() throws Exception {
        broker = TestBroker.start();
        admin = new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
    }

    @AfterAll
    static void stop() throws Exception {
        if (broker != null) {
            admin.close();
            broker.close();
        }
    }

    private static OptionalLong is(long number) {
        return OptionalLong.of(number);
    }

    private static void refused(int code, Executed what) {
        assertEquals(code, assertThrows(KeraException.class, what::run).code());
    }

    private interface Executed {
        void run() throws Exception;
    }

    private static List<Long> committed(GroupProgress progress) {
        return progress.lanes().stream().map(GroupProgress.Lane::committed).toList();
    }

    /** The group once brokers have told each other where its lanes end. */
    private static GroupDescription known(String group) throws IOException {
        GroupDescription told = admin.group(group);
        while (told.summary().unknownLanes() > 0) {
            told = admin.group(group);
        }
        return told;
    }

    @Test
    void aGroupIsListedDescribedResetAndDeleted() throws Exception {
        admin.createStream("visits", 1, 2);
        try (Producer producer = Producer.placed("visits", ProducerOptions.to(broker.address()))) {
            for (int n = 0; n < 10; n++) {
                producer.appendTo(n < 3 ? 1 : 0, null, ("" + n).getBytes(), List.of(), 0);
            }
            producer.flush();
        }
        ConsumerOptions options = ConsumerOptions.to(broker.address()).withCommitInterval(Duration.ZERO).withName("till");
        try (Consumer consumer = new Consumer("visits", "billing", options)) {
            ConsumedBatch batch = consumer.next(Duration.ofSeconds(30));
            int lane = batch.lease().lane();
            consumer.commit(batch);
            GroupDescription told = known("billing");
            assertEquals(1, told.members().size());
            assertEquals("till", told.members().get(0).client());
            assertEquals(2, told.members().get(0).leases());
            assertTrue(told.members().get(0).sinceHeartbeat().toSeconds() < 60);
            GroupProgress.Lane done = told.progress().lanes().get(lane);
            long head = lane == 0 ? 7 : 3;
            assertEquals(List.of(0, lane), List.of(done.streamlet(), done.lane()));
            assertEquals(batch.next(), done.committed());
            assertEquals(List.of(is(head), is(head - batch.next())), List.of(done.head(), done.lag()));
            GroupProgress.HeldLease lease = done.leases().get(0);
            assertEquals(batch.lease().id(), lease.lease());
            assertEquals(told.members().get(0).member(), lease.member());
            assertEquals(LaneReader.UNBOUNDED, lease.end());
            assertEquals(10 - batch.next(), told.summary().lag());
            refused(ErrorCodes.GROUP_NOT_EMPTY, () -> admin.resetGroup("billing", GroupPart.WHOLE, StartAt.EARLIEST));
            refused(ErrorCodes.GROUP_NOT_EMPTY, () -> admin.deleteGroup("billing"));
        }
        assertEquals(List.of(7L, 3L), committed(admin.resetGroup("billing", GroupPart.WHOLE, StartAt.LATEST)));
        GroupProgress moved = admin.resetGroup("billing", GroupPart.lane(0, 1), StartAt.ordinal(2));
        assertEquals(List.of(2L), committed(moved), "of the lane that was moved alone");
        assertEquals(List.of(7L, 2L), committed(admin.group("billing").progress()));
        assertEquals(List.of(0L, 0L), committed(admin.resetGroup("billing", GroupPart.WHOLE, StartAt.timestamp(0))));
        known("billing");
        GroupSummary listed = admin.groups().stream().filter(group -> group.group().equals("billing")).findAny().orElseThrow();
        assertEquals(new GroupSummary("billing", GroupSummary.Kind.NATIVE, "visits", ConsumerOptions.Order.LANE, 0, 0, 10, 0, "", "",
                List.of()), listed);
        admin.deleteGroup("billing");
        assertFalse(admin.groups().stream().anyMatch(group -> group.group().equals("billing")));
        refused(ErrorCodes.UNKNOWN_CONSUMER_GROUP, () -> admin.group("billing"));
        refused(ErrorCodes.UNKNOWN_CONSUMER_GROUP, () -> admin.deleteGroup("billing"));
        refused(ErrorCodes.UNKNOWN_CONSUMER_GROUP, () -> admin.resetGroup("billing", GroupPart.WHOLE, StartAt.LATEST));
    }

    @Test
    void positionsThatWereCommittedFromOutsideAreShown() throws Exception {
        admin.createStream("read", 1, 1);
        broker.run("a\nb\nc\n", "produce", "read");
        admin.commitPositions("engine", "read", List.of(new LanePosition(0, 0, 2)));
        GroupDescription told = known("engine");
        assertEquals(List.of(), told.members());
        assertEquals(1, told.summary().lag());
        assertEquals(List.of(2L), committed(told.progress()));
    }

    @Test
    void aPinIsMadeMovedListedLostAndDeleted() throws Exception {
        admin.createStream("pinned", 1, 2);
        try (Producer producer = Producer.placed("pinned", ProducerOptions.to(broker.address()))) {
            for (String value : List.of("a", "b", "c")) {
                producer.appendTo(0, null, value.getBytes(), List.of(), 0);
            }
        }
        PinRequest first = PinRequest.of("pinned", "savepoint", List.of(new LanePosition(0, 0, 1), new LanePosition(0, 1, 0)));
        Pin made = admin.createPin(first.withJob("orders").withPolicy(Pin.Policy.WAIT)
                .withMaxAge(Duration.ofHours(3)).withMaxBytes(1 << 20));
        assertEquals(List.of("pinned", "savepoint", "orders"), List.of(made.stream(), made.name(), made.job()));
        assertEquals(List.of(new LanePosition(0, 0, 1), new LanePosition(0, 1, 0)), made.positions());
        assertEquals(Pin.Policy.WAIT, made.policy());
        assertEquals(Duration.ofHours(3), made.maxAge());
        assertEquals(1 << 20, made.maxBytes());
        assertEquals(Optional.empty(), made.lost());
        assertEquals(List.of(made), admin.pins("pinned").pins());
        assertTrue(admin.pins().pins().contains(made));
        assertFalse(admin.pins().now().isBefore(made.created()));

        Pin moved = admin.createPin(PinRequest.of(
                "pinned", "savepoint", List.of(new LanePosition(0, 0, 2), new LanePosition(0, 1, 0))));
        assertEquals(2, moved.positions().get(0).ordinal());
        assertEquals(List.of(Pin.Policy.WARN, Duration.ofDays(7), 10L << 30), List.of(moved.policy(), moved.maxAge(), moved.maxBytes()));
        assertEquals(List.of(moved), admin.pins("pinned").pins());

        broker.run("", "stream", "trim", "pinned", "--everything", "--yes");
        Pin lost = admin.pins("pinned").pins().get(0);
        Pin.Loss loss = lost.lost().orElseThrow();
        assertEquals(List.of(0, 0, 2L, Pin.Cause.TRIM), List.of(loss.streamlet(), loss.lane(), loss.ordinal(), loss.cause()));
        refused(ErrorCodes.INVALID_ARGUMENT, () -> admin.createPin(first));
        refused(ErrorCodes.INVALID_ARGUMENT, () -> admin.createPin(
                PinRequest.of("pinned", "half", List.of(new LanePosition(0, 0, 3)))));
        byte[] former = new byte[16];
        refused(ErrorCodes.UNKNOWN_STREAM, () -> admin.createPin(first.withStreamId(former)));

        assertEquals("savepoint", admin.deletePin("pinned", "savepoint").name());
        assertEquals(List.of(), admin.pins("pinned").pins());
        refused(ErrorCodes.INVALID_ARGUMENT, () -> admin.deletePin("pinned", "savepoint"));
        refused(ErrorCodes.UNKNOWN_STREAM, () -> admin.pins("nothing"));
    }

    private static List<LanePosition> firstLane(long ordinal) {
        return List.of(new LanePosition(0, 0, ordinal));
    }

    /** Lanes were added, and records trimmed, that the keeper does not know of. */
    @Test
    void aPinIsKeptWhereItIsNeeded() throws Exception {
        byte[] none = {};
        admin.createStream("kept", 1, 1);
        broker.run("a\nb\nc\nd\n", "produce", "kept");
        List<String> failed = new ArrayList<>();
        Pinning pinning = Pinning.named("keeper").waiting().maxAge(Duration.ofHours(2)).maxBytes(1 << 20);
        PinKeeper.Opener brokers = () -> new Admin(List.of(broker.address()), ConnectOptions.DEFAULT);
        for (PinKeeper.Needs needs : PinKeeper.Needs.values()) {
            try (PinKeeper keeper = new PinKeeper(brokers, pinning.renamed("keeper-" + needs), needs, "two\nlines", "the test",
                    (why, isNews) -> failed.add(isNews + " " + why))) {
                keeper.move("kept", none, firstLane(1));
                keeper.move("kept", none, firstLane(2));
                keeper.await();
                Pin pin = admin.pins("kept").pins().stream().filter(each -> each.name().equals("keeper-" + needs)).findAny().orElseThrow();
                assertEquals(2, pin.positions().get(0).ordinal());
                assertEquals("two lines", pin.job());
                assertEquals(List.of(Pin.Policy.WAIT, Duration.ofHours(2), 1L << 20), List.of(pin.policy(), pin.maxAge(), pin.maxBytes()));
                assertEquals(List.of(), failed);
                if (needs == PinKeeper.Needs.ALL_LANES) {
                    keeper.delete("kept");
                    keeper.await();
                    assertEquals(List.of(), admin.pins("kept").pins());
                    keeper.delete("kept");
                }
            }
        }
        assertEquals(List.of(), failed, "none is there, and none is missed");
        admin.growStream("kept", 2);
        try (Producer producer = Producer.placed("kept", ProducerOptions.to(broker.address()))) {
            producer.appendTo(1, null, "e".getBytes(), List.of(), 0);
        }
        for (PinKeeper.Needs needs : PinKeeper.Needs.values()) {
            try (PinKeeper keeper = new PinKeeper(brokers, pinning, needs, "", "the test", (why, isNews) -> failed.add(isNews + " " + why))) {
                keeper.move("kept", none, firstLane(3));
                keeper.await();
                Pin pin = admin.pins("kept").pins().stream().filter(each -> each.name().equals("keeper")).findAny().orElseThrow();
                long added = needs == PinKeeper.Needs.ALL_LANES ? 0 : 1;
                assertEquals(List.of(new LanePosition(0, 0, 3), new LanePosition(0, 1, added)), pin.positions());
                assertEquals(List.of(), failed);
            }
        }
        broker.run("", "stream", "trim", "kept", "--streamlet", "0", "--lane", "0", "--ordinal", "4");
        try (PinKeeper keeper = new PinKeeper(brokers, pinning, PinKeeper.Needs.ALL_LANES, "", "the test",
                (why, isNews) -> failed.add(isNews + " " + why))) {
            for (int n = 0; n < 2; n++) {
                keeper.move("kept", none, firstLane(3));
                keeper.await();
            }
            String lost = " records are gone that the test needs: lane kept:0/0 lost records from ordinal 3 on before pin keeper was set;";
            assertTrue(failed.get(0).startsWith("true" + lost) && failed.get(1).startsWith("false" + lost), failed.toString());
            keeper.move("nothing", none, firstLane(0));
            keeper.await();
            assertTrue(failed.get(2).startsWith("true pin keeper of stream nothing does not have the positions of the test"), failed.get(2));
        }
    }

    @Test
    void aPinWhoseDeletionWasNotAnsweredMayBeGone() throws Exception {
        // Which stream, which pins it has, and the deletion.
        try (FakeBroker fake = answering(0, 0, -1); Admin of = of(fake, Duration.ofSeconds(30))) {
            IOException open = assertThrows(IOException.class, () -> of.deletePin("s", "p"));
            assertTrue(open.getMessage().contains("may have been done"), open.getMessage());
            assertEquals(3, fake.asked(), "a later pin of the name is not deleted in its place");
        }
    }

    private static byte[] kafkaGroup() {
        Wire.Writer lag = new Wire.Writer().text(1, "s").number(2, 4).number(3, 1);
        Wire.Writer summary = new Wire.Writer().text(1, "k").number(4, 1).number(6, 4).number(7, 1).text(8, "Stable")
                .bytes(9, lag.done()).text(10, "consumer").number(11, 1);
        Wire.Writer member = new Wire.Writer().text(1, "m").text(2, "c").number(4, 1_500).text(5, "h").text(6, "i").number(7, 3)
                .number(8, 8).number(9, 2);
        Wire.Writer read = new Wire.Writer().text(1, "s").number(2, 5).present(3, 0).number(4, 9).number(5, 9).text(6, "m").text(7, "x");
        Wire.Writer away = new Wire.Writer().text(1, "s").number(3, 7).number(8, 1);
        Wire.Writer begun = new Wire.Writer().text(1, "s").number(2, 1).number(4, 6);
        return new Wire.Writer().bytes(1, summary.done()).bytes(2, member.done()).bytes(4, read.done()).bytes(4, away.done())
                .bytes(4, begun.done()).number(5, 8).text(6, "range").done();
    }

    @Test
    void groupsOfKafkasClientsHavePartitions() {
        GroupDescription told = GroupDescription.read(ByteBuffer.wrap(kafkaGroup()));
        assertEquals(new GroupSummary("k", GroupSummary.Kind.KAFKA, "", null, 1, 0, 4, 1, "Stable", "consumer",
                List.of(new GroupSummary.StreamLag("s", 4, 1))), told.summary());
        assertEquals(List.of(new GroupDescription.Member("m", "c", 0, Duration.ofMillis(1_500), "h", "i", 3, 8, 2)), told.members());
        assertEquals(List.of(
                new GroupProgress.Partition("s", 5, is(0), is(9), is(9), "m", "x"),
                new GroupProgress.Partition("s", 0, is(7), NOTHING, NOTHING, "", ""),
                new GroupProgress.Partition("s", 1, NOTHING, is(6), NOTHING, "", "")), told.progress().partitions());
        assertEquals(8, told.generation());
        assertEquals("range", told.protocol());
    }

    @Test
    void whatIsNotKnownIsTold() {
        Wire.Writer slice = new Wire.Writer().number(1, 9).text(2, "m").number(3, 5).number(4, 80).fixed64(5, 1L << 63 | 6).number(6, 7);
        Wire.Writer held = new Wire.Writer().number(1, 9).number(2, 77).number(3, 5).number(4, 8);
        Wire.Writer lane = new Wire.Writer().number(1, 1).number(2, 2).number(3, 5).number(4, 3).bytes(7, slice.done())
                .bytes(8, held.done()).number(9, 1).bytes(10, new byte[] {0, 4, (byte) 0x80, 1});
        Wire.Writer summary = new Wire.Writer().number(3, 77).number(7, 9);
        GroupDescription told = GroupDescription.read(
                ByteBuffer.wrap(new Wire.Writer().bytes(1, summary.done()).bytes(3, lane.done()).done()));
        assertEquals(GroupSummary.Kind.UNKNOWN, told.summary().kind());
        assertNull(told.summary().order());
        assertEquals(List.of(new GroupProgress.Lane(1, 2, 5, 3, NOTHING, NOTHING,
                List.of(new GroupProgress.HeldLease(9, "m", 5, 80, 1L << 63 | 6, 7)),
                List.of(new GroupProgress.HeldPosition(9, 77, 5, 8)), List.of(0L, 4L, 128L))), told.progress().lanes());
    }

    /** Answers the next requests with these errors, 0 for none and -1 for the end of the connection; the last one stands for all that follow. */
    private static FakeBroker answering(Integer... errors) throws IOException {
        List<Integer> left = new ArrayList<>(Arrays.asList(errors));
        FakeBroker broker = FakeBroker.late(new FakeBroker.Answers() {
            @Override
            public byte[] body(FrameChannel.Frame request) {
                return new byte[0];
            }

            @Override
            public byte[] header(FrameChannel.Frame request) throws IOException {
                synchronized (left) {
                    int error = left.size() > 1 ? left.remove(0) : left.get(0);
                    if (error < 0) {
                        throw new IOException("planted");
                    }
                    return error == 0 ? new byte[0] : new Wire.Writer().number(1, error).text(2, "planted").done();
                }
            }
        });
        broker.goOn();
        return broker;
    }

    private static Admin of(FakeBroker broker, Duration patience) {
        return new Admin(List.of(broker.address()), ConnectOptions.DEFAULT, patience.toNanos());
    }

    @Test
    void coordinatorsThatReadTheirStateAreWaitedFor() throws Exception {
        int loading = ErrorCodes.COORDINATOR_LOADING;
        try (FakeBroker fake = answering(loading, loading, 0); Admin of = of(fake, Duration.ofSeconds(30))) {
            assertEquals(List.of(), of.groups());
            assertEquals(3, fake.asked());
        }
        // In turn: who the coordinator is, what is asked of it, who it is then, that again.
        try (FakeBroker fake = answering(0, ErrorCodes.NOT_COORDINATOR, 0, 0); Admin of = of(fake, Duration.ofSeconds(30))) {
            assertEquals("", of.group("g").summary().group());
            assertEquals(4, fake.asked());
        }
        try (FakeBroker fake = answering(0, loading); Admin of = of(fake, Duration.ofMillis(50))) {
            IOException late = assertThrows(IOException.class, () -> of.deleteGroup("g"));
            assertTrue(late.getMessage().startsWith("the coordinator of group g did not answer in time"), late.getMessage());
            assertFalse(late.getMessage().contains("may have been done"), late.getMessage());
        }
    }

    @Test
    void aChangeWhoseAnswerWasLostIsNeverSaidToBeRefused() throws Exception {
        for (int lost : new int[] {-1, ErrorCodes.TIMEOUT, ErrorCodes.SHUTTING_DOWN}) {
            try (FakeBroker fake = answering(0, lost, 0, ErrorCodes.GROUP_NOT_EMPTY); Admin of = of(fake, Duration.ofSeconds(30))) {
                IOException open = assertThrows(
                        IOException.class, () -> of.resetGroup("g", GroupPart.WHOLE, StartAt.EARLIEST));
                assertFalse(open instanceof KeraException, open.toString());
                assertTrue(open.getMessage().contains("an earlier attempt may have done it"), open.getMessage());
            }
            try (FakeBroker fake = answering(0, lost, 0, ErrorCodes.UNKNOWN_CONSUMER_GROUP); Admin of = of(fake, Duration.ofSeconds(30))) {
                of.deleteGroup("g");
                assertEquals(4, fake.asked(), "it is gone");
            }
            try (FakeBroker fake = answering(0, lost, ErrorCodes.COORDINATOR_LOADING); Admin of = of(fake, Duration.ofMillis(50))) {
                IOException open = assertThrows(IOException.class, () -> of.deleteGroup("g"));
                assertTrue(open.getMessage().contains("may have been done"), open.getMessage());
            }
        }
    }
}
