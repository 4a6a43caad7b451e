package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Membership.Call;
import io.kera.client.Membership.Kind;
import io.kera.client.ModelGroup.LeaseName;
import io.kera.client.ModelTransactions.Outcome;
import io.kera.client.ModelTransactions.Transaction;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Members of a group against a coordinator that forgets them, and a network that loses and delays: played from seeds. */
class MembershipTest {
    private static final int SEEDS = 600;
    private static final long MILLI = 1_000_000;

    /** Records of a lease that the application has in hand. */
    private record InHand(Lease lease, String member, int incarnation, long from, long next) {}

    /** A member, what it reads, and its application. */
    private static final class Client {
        private final Membership membership;
        private final Map<Lease, Long> reading = new HashMap<>();
        private final Map<Lease, Deque<InHand>> inHand = new HashMap<>();
        private final List<Call> underWay = new ArrayList<>();
        /** Which group each lease is of. */
        private final Map<Lease, Integer> incarnations = new HashMap<>();
        /** What it writes in; null: none is open. */
        private Transaction transaction;
        private boolean isSent;
        private boolean commits;
        /** The one before may be open still: the next one of the same id ends it. */
        private Transaction last;

        Client(Random dice, long now, boolean inTransactions) {
            boolean byHand = inTransactions || dice.nextInt(3) == 0;
            membership = new Membership(1 + dice.nextInt(4), byHand ? 0 : 30 * MILLI, now);
        }
    }

    private static final class Game {
        private final Random dice;
        private final ModelGroup group;
        private final List<Client> clients = new ArrayList<>();
        /** Calls of which the member has given up to hear, and that may still arrive. */
        private final List<Runnable> late = new ArrayList<>();
        /** What is processed is a copy that is written in transactions; null: it is not. */
        private final ModelTransactions transactions;
        private final BitSet[] processed = new BitSet[ModelGroup.LANES];
        private long now = 1;

        Game(long seed, boolean ordered, boolean inTransactions) {
            dice = new Random(seed);
            group = new ModelGroup(dice, ordered);
            transactions = inTransactions ? new ModelTransactions(group, dice) : null;
            for (int lane = 0; lane < processed.length; lane++) {
                processed[lane] = new BitSet();
            }
            for (int n = 1 + dice.nextInt(3); n > 0; n--) {
                clients.add(new Client(dice, now, inTransactions));
            }
        }

        private void drive(Client client) {
            List<Call> calls = client.membership.due(now);
            boolean leaves = calls.stream().anyMatch(call -> call.kind() == Kind.LEAVE);
            assertFalse(leaves && client.membership.leases().hasUncommitted(), "it leaves without a commit");
            client.underWay.addAll(calls);
            take(client);
        }

        private void take(Client client) {
            for (Lease lease : client.membership.takeEnded()) {
                client.reading.remove(lease);
            }
            for (Lease lease : client.membership.takeGranted()) {
                client.reading.put(lease, lease.start());
                client.incarnations.put(lease, group.incarnation());
            }
        }

        private KeraException refusal(Call call) {
            if (call.kind() == Kind.JOIN || call.kind() == Kind.LEAVE || group.isMember(call.member())) {
                return null;
            }
            return new KeraException(ErrorCodes.UNKNOWN_MEMBER, "unknown");
        }

        /** The coordinator does what is asked; the member hears of it. */
        private void arrive(Client client, Call call) {
            KeraException refused = refusal(call);
            if (refused == null && dice.nextInt(30) == 0) {
                refused = new KeraException(ErrorCodes.COORDINATOR_LOADING, "loading");
            }
            Membership membership = client.membership;
            if (refused != null) {
                membership.failed(call, refused, now);
                return;
            }
            switch (call.kind()) {
                case JOIN -> membership.joinedAs(call, group.join(call.member()), 10, now);
                case HEARTBEAT -> {
                    List<Long> giveBack = new ArrayList<>();
                    List<Long> lost = group.heartbeat(call.member(), call.leases(), giveBack);
                    membership.heartbeatAnswered(call, lost, giveBack, now);
                }
                case ACQUIRE -> membership.acquired(call, group.acquire(call.member(), call.room()), now);
                case COMMIT -> {
                    ModelGroup.Answer answer = group.commit(call.member(), call.commits());
                    membership.committed(call, answer.stale(), answer.pending(), now);
                }
                case LEAVE -> {
                    group.leave(call.member());
                    membership.leaveAnswered(call, now);
                }
            }
            take(client);
        }

        /** The coordinator does what is asked; nobody hears of it. */
        private void arriveUnheard(Call call) {
            if (refusal(call) != null) {
                return;
            }
            switch (call.kind()) {
                case JOIN -> group.join(call.member());
                case HEARTBEAT -> group.heartbeat(call.member(), call.leases(), new ArrayList<>());
                case ACQUIRE -> group.acquire(call.member(), call.room());
                case COMMIT -> group.commit(call.member(), call.commits());
                case LEAVE -> group.leave(call.member());
            }
        }

        private void network(Client client, boolean fair) {
            if (client.underWay.isEmpty()) {
                return;
            }
            Call call = client.underWay.remove(dice.nextInt(client.underWay.size()));
            int fate = fair ? 9 : dice.nextInt(10);
            if (fate == 0) {
                client.membership.failed(call, null, now);
                late.add(() -> arriveUnheard(call));
            } else if (fate == 1) {
                arriveUnheard(call);
                client.membership.failed(call, null, now);
            } else {
                arrive(client, call);
            }
            take(client);
        }

        private void read(Client client) {
            for (Lease lease : List.copyOf(client.reading.keySet())) {
                long from = client.reading.get(lease);
                long end = lease.isRange() ? lease.end() : ModelGroup.endOf(lease.lane(), lease.generation());
                boolean hollow = ModelGroup.isHollow(lease.lane(), from);
                long next = from;
                while (next < end && next < from + 4 && ModelGroup.isHollow(lease.lane(), next) == hollow) {
                    next++;
                }
                LeaseTable leases = client.membership.leases();
                if (next == end && dice.nextBoolean() && from == end) {
                    leases.finish(lease, end);
                    client.reading.remove(lease);
                } else if (from == end) {
                    continue;
                } else if (hollow) {
                    leases.skip(lease, from, next);
                    client.reading.put(lease, next);
                } else if (leases.deliver(lease, next)) {
                    checkBarrier(lease, from);
                    client.reading.put(lease, next);
                    InHand batch = new InHand(lease, client.membership.member(), client.incarnations.get(lease), from, next);
                    client.inHand.computeIfAbsent(lease, any -> new ArrayDeque<>()).add(batch);
                }
            }
        }

        /** The program goes on: it begins a transaction, sends its positions, or ends it. */
        private void transact(Client client, boolean fair) {
            Transaction open = client.transaction;
            if (open == null) {
                begin(client);
                return;
            }
            int fate = fair ? 9 : dice.nextInt(10);
            boolean givesUp = !fair && dice.nextInt(4) == 0;
            if (!client.isSent) {
                int error = fate == 0 ? ErrorCodes.TIMEOUT : transactions.send(open);
                if (fate == 0) {
                    late.add(() -> transactions.send(open));
                }
                client.isSent = error == 0 && fate != 1;
                boolean isOpen = error == 0 || ErrorCodes.isRetryable(error);
                client.commits &= isOpen && (client.isSent || !givesUp);
                // Without its positions it can be aborted alone.
                client.isSent |= !client.commits;
                return;
            }
            boolean commit = client.commits;
            if (fate == 0) {
                late.add(() -> transactions.end(open, commit));
            }
            Outcome outcome = fate == 0 ? null : transactions.end(open, commit);
            if (fate > 1 || givesUp) {
                // Without an answer nobody knows, and then it is not committed for certain.
                ended(client, fate > 1 && outcome == Outcome.COMMITTED);
            }
        }

        private void begin(Client client) {
            Transaction next = transactions.begin(client.membership.member());
            boolean isHeld = true;
            for (Lease lease : List.copyOf(client.inHand.keySet())) {
                Deque<InHand> batches = client.inHand.get(lease);
                for (int n = dice.nextInt(3); n > 0 && !batches.isEmpty(); n--) {
                    InHand batch = batches.poll();
                    next.write(lease, batch.from(), batch.next());
                    isHeld &= batch.member().equals(client.membership.member()) && client.membership.leases().holds(lease);
                }
                client.inHand.computeIfPresent(lease, (any, left) -> left.isEmpty() ? null : left);
            }
            if (client.last != null) {
                transactions.end(client.last, false);
            }
            client.transaction = next;
            client.last = next;
            client.isSent = false;
            client.commits = dice.nextInt(5) != 0;
            if (!isHeld) {
                transactions.end(next, false);
                client.transaction = null;
                client.membership.rewind();
                take(client);
            } else if (next.positions.isEmpty()) {
                transactions.end(next, false);
                client.transaction = null;
            }
        }

        private void ended(Client client, boolean isCommitted) {
            client.membership.transactionEnded(client.transaction.positions, isCommitted);
            client.transaction = null;
            take(client);
        }

        private void checkBarrier(Lease lease, long from) {
            if (!group.ordered || from < ModelGroup.startOf(lease.lane(), 1)) {
                return;
            }
            if (lease.lane() < ModelGroup.OLD_LANES && from < ModelGroup.BOUNDARY) {
                return;
            }
            for (int lane = 0; lane < ModelGroup.OLD_LANES; lane++) {
                for (int ordinal = 0; ordinal < ModelGroup.BOUNDARY; ordinal++) {
                    assertTrue(isDone(lane, ordinal), "lane " + lane + " has " + ordinal + " left, and " + lease + " is read at " + from);
                }
            }
        }

        private boolean isDone(int lane, int ordinal) {
            boolean done = transactions == null ? processed[lane].get(ordinal) : transactions.isCopied(lane, ordinal);
            return done || ModelGroup.isHollow(lane, ordinal);
        }

        /** The application is done with a batch; it may be of a lease that ended long ago. */
        private void process(Client client, boolean fair) {
            if (transactions != null) {
                transact(client, fair);
                return;
            }
            for (Lease lease : List.copyOf(client.inHand.keySet())) {
                Deque<InHand> batches = client.inHand.get(lease);
                InHand batch = batches.poll();
                if (batch == null) {
                    client.inHand.remove(lease);
                    continue;
                }
                for (long ordinal = batch.from(); ordinal < batch.next(); ordinal++) {
                    processed[lease.lane()].set((int) ordinal);
                    group.processed.computeIfAbsent(new LeaseName(batch.incarnation(), lease.id()), any -> new BitSet())
                            .set((int) ordinal);
                }
                if (batch.member().equals(client.membership.member())) {
                    client.membership.leases().processed(lease.id(), batch.next());
                    if (dice.nextInt(3) == 0) {
                        client.membership.wantCommit();
                    }
                }
            }
        }

        void play() {
            for (int move = 0; move < 400; move++) {
                Client client = clients.get(dice.nextInt(clients.size()));
                now += dice.nextInt(4) * MILLI;
                switch (dice.nextInt(20)) {
                    case 0, 1, 2, 3, 4 -> drive(client);
                    case 5, 6, 7, 8, 9, 10 -> network(client, false);
                    case 11, 12, 13 -> read(client);
                    case 14, 15, 16 -> process(client, false);
                    case 17 -> {
                        if (!late.isEmpty()) {
                            late.remove(dice.nextInt(late.size())).run();
                        }
                    }
                    case 18 -> misfortune();
                    default -> now += dice.nextInt(60) * MILLI;
                }
            }
            finish();
        }

        private void misfortune() {
            switch (dice.nextInt(12)) {
                case 0, 1 -> group.expireOne();
                case 2, 3 -> group.revokeOne();
                case 4 -> {
                    if (transactions == null) {
                        group.delete();
                    } else {
                        transactions.abortOne();
                    }
                }
                case 5, 6, 7 -> {
                    if (transactions != null) {
                        transactions.tellOne();
                    }
                }
                default -> { }
            }
        }

        private void fair() {
            now += 11 * MILLI;
            for (Client client : clients) {
                drive(client);
                while (!client.underWay.isEmpty()) {
                    network(client, true);
                }
                read(client);
                process(client, true);
            }
            if (transactions != null) {
                transactions.abortAllBut(clients.stream().map(client -> client.transaction).toList());
                transactions.tellAll();
            }
        }

        /** Nothing is lost any more: all records are consumed, and all members leave. */
        private void finish() {
            // What nobody hears of ends as sessions do.
            for (int round = 0; !group.isConsumed(); round++) {
                clients.forEach(client -> client.membership.wantCommit());
                fair();
                assertTrue(round < 2_000, "it comes to no end");
                if (round % 200 == 199) {
                    group.expireOne();
                }
            }
            clients.forEach(client -> client.membership.close());
            for (int round = 0; clients.stream().anyMatch(client -> !client.membership.hasLeft()); round++) {
                fair();
                assertTrue(round < 2_000, "somebody does not leave");
            }
            for (Client client : clients) {
                assertNull(client.membership.failure());
            }
            while (!group.isEmpty()) {
                // Members that joined without hearing of it.
                group.expireOne();
            }
            for (int lane = 0; lane < ModelGroup.LANES; lane++) {
                for (int ordinal = 0; ordinal < ModelGroup.RECORDS; ordinal++) {
                    assertTrue(isDone(lane, ordinal), lane + ": " + ordinal);
                }
            }
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void everyRecordIsProcessedBeforeItIsCommitted(boolean ordered) {
        Seeds.play(SEEDS, seed -> new Game(seed, ordered, false).play());
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void everyRecordIsInOneTransactionThatIsCommitted(boolean ordered) {
        Seeds.play(SEEDS / 2, seed -> new Game(seed, ordered, true).play());
    }

    private static Membership joined() {
        Membership membership = new Membership(2, 0, 1);
        membership.joinedAs(membership.due(1).get(0), "m", 10, 1);
        return membership;
    }

    private static Call only(List<Call> calls, Kind kind) {
        List<Call> found = calls.stream().filter(call -> call.kind() == kind).toList();
        assertEquals(1, found.size(), calls.toString());
        return found.get(0);
    }

    private static final Lease LANE = new Lease(7, 0, 0, 10, LaneReader.UNBOUNDED, 0);

    @Test
    void progressIsCommittedOnceAskedForAndAgainIfTheAnswerIsLost() {
        Membership membership = joined();
        membership.acquired(only(membership.due(2), Kind.ACQUIRE), List.of(LANE), 2);
        assertTrue(membership.leases().deliver(LANE, 20));
        membership.wantCommit();
        assertTrue(membership.due(3).stream().noneMatch(call -> call.kind() == Kind.COMMIT), "delivered is not processed");
        membership.leases().processed(7, 20);
        membership.wantCommit();
        Call commit = only(membership.due(4), Kind.COMMIT);
        assertEquals(List.of(new LeaseCommit(7, 20, false)), commit.commits());
        membership.failed(commit, null, 5);
        Call again = only(membership.due(5 + 2_000 * MILLI), Kind.COMMIT);
        assertEquals(commit.commits(), again.commits());
        membership.committed(again, List.of(), List.of(), 6);
        assertEquals(20, membership.leases().committed(7));
    }

    @Test
    void aCommitWaitsForATransactionThatHasItsLeaseAndOthersDoNot() {
        Membership membership = joined();
        Lease other = new Lease(8, 0, 1, 0, LaneReader.UNBOUNDED, 0);
        membership.acquired(only(membership.due(2), Kind.ACQUIRE), List.of(LANE, other), 2);
        LeaseTable leases = membership.leases();
        for (Lease lease : List.of(LANE, other)) {
            leases.deliver(lease, 20);
            leases.processed(lease.id(), 20);
        }
        membership.wantCommit();
        Call commit = only(membership.due(3), Kind.COMMIT);
        membership.committed(commit, List.of(), List.of(7L), 4);
        assertEquals(List.of(10L, 20L), List.of(leases.committed(7), leases.committed(8)));
        assertEquals(List.of(LANE, other), leases.leases());
        // Others are committed meanwhile.
        leases.deliver(other, 30);
        leases.processed(8, 30);
        membership.wantCommit();
        Call next = only(membership.due(5), Kind.COMMIT);
        assertEquals(List.of(new LeaseCommit(8, 30, false)), next.commits());
        membership.committed(next, List.of(), List.of(), 6);
        Call again = only(membership.due(6 + 2_000 * MILLI), Kind.COMMIT);
        assertEquals(List.of(new LeaseCommit(7, 20, false)), again.commits());
    }

    @Test
    void aLeaseWhoseTransactionIsNotCommittedIsReleasedWithoutProgress() {
        for (boolean isCommitted : new boolean[] {true, false}) {
            Membership membership = joined();
            membership.acquired(only(membership.due(2), Kind.ACQUIRE), List.of(LANE), 2);
            membership.takeGranted();
            LeaseTable leases = membership.leases();
            assertTrue(leases.deliver(LANE, 20) && leases.deliver(LANE, 30));
            // It is given back, and that waits for the transaction.
            membership.heartbeatAnswered(only(membership.due(2 + 10 * MILLI), Kind.HEARTBEAT), List.of(), List.of(7L), 3);
            assertTrue(membership.due(4).stream().noneMatch(call -> call.kind() == Kind.COMMIT));
            membership.transactionEnded(Map.of(LANE, isCommitted ? 30L : 20L), isCommitted);
            assertEquals(isCommitted, leases.holds(LANE));
            Call commit = only(membership.due(5), Kind.COMMIT);
            // A transaction has committed the rest: to release it is all that is left.
            assertEquals(List.of(new LeaseCommit(7, LeaseCommit.NONE, true)), commit.commits());
            assertEquals(isCommitted, leases.processed(7, 30));
            assertEquals(Set.of(LANE), Set.copyOf(membership.takeEnded()));
            membership.failed(commit, null, 6);
            Call again = only(membership.due(6 + 2_000 * MILLI), Kind.COMMIT);
            assertEquals(commit.commits(), again.commits());
            membership.committed(again, List.of(), List.of(), 7);
            assertEquals(isCommitted ? 30 : 10, leases.committed(7));
            assertFalse(leases.isHeld(LANE));
        }
    }

    @Test
    void aLeaseThatIsGivenUpIsNotReadAndAnotherIsAskedFor() {
        Membership membership = new Membership(1, 0, 1);
        membership.joinedAs(membership.due(1).get(0), "m", 10, 1);
        membership.acquired(only(membership.due(2), Kind.ACQUIRE), List.of(LANE), 2);
        LeaseTable leases = membership.leases();
        membership.rewind();
        assertTrue(leases.holds(LANE), "nothing of it was delivered");
        assertTrue(leases.deliver(LANE, 20));
        assertTrue(membership.due(3).stream().noneMatch(call -> call.kind() == Kind.ACQUIRE));
        membership.rewind();
        assertFalse(leases.deliver(LANE, 30));
        assertFalse(leases.processed(7, 20));
        assertEquals(List.of(LANE), membership.takeEnded());
        assertEquals(1, only(membership.due(4), Kind.ACQUIRE).room());
        // One of the same number that comes later is another one.
        membership.transactionEnded(Map.of(new Lease(7, 0, 1, 0, 100, 0), 50L), true);
        assertEquals(10, leases.committed(7));
    }

    @Test
    void aLeaseThatIsAskedBackGoesOnceWhatWasDeliveredIsCommitted() {
        Membership membership = joined();
        membership.acquired(only(membership.due(2), Kind.ACQUIRE), List.of(LANE), 2);
        membership.leases().deliver(LANE, 20);
        Call heartbeat = only(membership.due(2 + 10 * MILLI), Kind.HEARTBEAT);
        assertEquals(List.of(7L), heartbeat.leases());
        membership.heartbeatAnswered(heartbeat, List.of(), List.of(7L), 3);
        assertEquals(List.of(LANE), membership.takeEnded());
        assertFalse(membership.leases().deliver(LANE, 30), "no more of it");
        assertTrue(membership.due(4).stream().noneMatch(call -> call.kind() == Kind.COMMIT));
        membership.leases().processed(7, 20);
        Call commit = only(membership.due(5), Kind.COMMIT);
        assertEquals(List.of(new LeaseCommit(7, 20, true)), commit.commits());
        membership.committed(commit, List.of(), List.of(), 6);
        assertEquals(20, membership.leases().committed(7), "a late commit finds it done");
        assertEquals(List.of(), membership.leases().ids());
    }

    @Test
    void aMemberThatIsForgottenJoinsAgainAndHoldsNothing() {
        Membership membership = joined();
        List<Call> calls = membership.due(2);
        membership.acquired(only(calls, Kind.ACQUIRE), List.of(LANE), 2);
        Call heartbeat = only(membership.due(2 + 10 * MILLI), Kind.HEARTBEAT);
        membership.failed(heartbeat, new KeraException(ErrorCodes.UNKNOWN_MEMBER, "who"), 3);
        Call join = only(membership.due(4), Kind.JOIN);
        assertEquals("m", join.member());
        membership.joinedAs(join, "n", 10, 5);
        assertEquals(List.of(LANE), membership.takeEnded());
        assertEquals(LeaseTable.STALE, membership.leases().committed(7));
    }

    @Test
    void aMemberThatIsForgottenAsItLeavesSaysWhatItHasLost() {
        for (boolean isProcessed : new boolean[] {true, false}) {
            Membership membership = joined();
            membership.acquired(only(membership.due(2), Kind.ACQUIRE), List.of(LANE), 2);
            membership.leases().deliver(LANE, 20);
            if (isProcessed) {
                membership.leases().processed(7, 20);
            }
            membership.close();
            Kind kind = isProcessed ? Kind.COMMIT : Kind.HEARTBEAT;
            Call call = only(membership.due(2 + 10 * MILLI), kind);
            membership.failed(call, new KeraException(ErrorCodes.UNKNOWN_MEMBER, "who"), 3 + 10 * MILLI);
            assertTrue(membership.hasLeft());
            assertEquals(isProcessed, membership.hasLost());
        }
    }

    @Test
    void whatIsSaidOfTheLeasesOfAnEarlierMemberIsNothingToTheNext() {
        Membership membership = joined();
        List<Call> calls = membership.due(2 + 10 * MILLI);
        membership.failed(only(calls, Kind.HEARTBEAT), new KeraException(ErrorCodes.UNKNOWN_MEMBER, "who"), 3);
        membership.joinedAs(only(membership.due(4), Kind.JOIN), "n", 10, 5);
        membership.acquired(only(calls, Kind.ACQUIRE), List.of(LANE), 6);
        assertEquals(List.of(), membership.takeGranted());
        assertEquals(List.of(), membership.leases().ids());
    }

    /** The coordinator has ended it, as heartbeats did not list it, and given its records to another. */
    @Test
    void aLeaseThatEndedBeforeItsGrantWasHeardIsNotRead() {
        for (boolean held : new boolean[] {true, false}) {
            Membership membership = joined();
            Call acquire = only(membership.due(2), Kind.ACQUIRE);
            long late = 2 + 10 * MILLI;
            Call unaware = only(membership.due(late), Kind.HEARTBEAT);
            membership.acquired(acquire, List.of(LANE), late);
            membership.heartbeatAnswered(unaware, List.of(), List.of(), late);
            assertEquals(List.of(), membership.takeGranted());
            Call heartbeat = only(membership.due(late + 1), Kind.HEARTBEAT);
            assertEquals(List.of(7L), heartbeat.leases(), "it is asked about at once");
            membership.heartbeatAnswered(heartbeat, held ? List.of() : List.of(7L), List.of(), late + 2);
            assertEquals(held ? List.of(LANE) : List.of(), membership.takeGranted());
            assertEquals(List.of(), membership.takeEnded(), "nobody has read it");
            assertEquals(held ? List.of(7L) : List.of(), membership.leases().ids());
        }
    }

    @Test
    void aLeaseThatIsLostIsReadNoMore() {
        Membership membership = joined();
        membership.acquired(only(membership.due(2), Kind.ACQUIRE), List.of(LANE), 2);
        Call heartbeat = only(membership.due(2 + 10 * MILLI), Kind.HEARTBEAT);
        membership.heartbeatAnswered(heartbeat, List.of(7L), List.of(), 3);
        assertEquals(List.of(LANE), membership.takeEnded());
        assertFalse(membership.leases().deliver(LANE, 20));
    }

    /** What was received for the first one may be decoded just then, without the lock. */
    @Test
    void whatWasReceivedForALeaseIsNotDeliveredForAnotherOneWithItsNumber() {
        Membership membership = joined();
        membership.acquired(only(membership.due(2), Kind.ACQUIRE), List.of(LANE), 2);
        List<Call> calls = membership.due(2 + 10 * MILLI);
        membership.failed(only(calls, Kind.HEARTBEAT), new KeraException(ErrorCodes.UNKNOWN_MEMBER, "who"), 3);
        membership.joinedAs(only(membership.due(4), Kind.JOIN), "n", 10, 5);
        membership.acquired(only(calls, Kind.ACQUIRE), List.of(), 5);
        Lease other = new Lease(7, 0, 1, 0, 100, 0);
        membership.acquired(only(membership.due(6), Kind.ACQUIRE), List.of(other), 6);
        LeaseTable leases = membership.leases();
        assertFalse(leases.deliver(LANE, 90));
        assertFalse(leases.skip(LANE, 10, 90));
        leases.finish(LANE, 100);
        membership.wantCommit();
        assertTrue(membership.due(7).stream().noneMatch(call -> call.kind() == Kind.COMMIT), "nothing of it was delivered");
        assertTrue(leases.deliver(other, 90));
    }

    @Test
    void aRefusalForGoodEndsTheMembership() {
        Membership membership = new Membership(2, 0, 1);
        membership.failed(membership.due(1).get(0), new KeraException(29, "another order"), 2);
        assertEquals(29, membership.failure().code());
        assertEquals(List.of(), membership.due(3));
    }
}
