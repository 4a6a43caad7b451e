package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;

/** A coordinator with one group, whose stream has grown once: it knows of every lease what was processed under it. */
final class ModelGroup {
    /** Lanes that there are, of which the last came with the growth, and records of each in each generation. */
    static final int LANES = 3;
    static final int OLD_LANES = 2;
    static final int BOUNDARY = 25;
    static final int RECORDS = 50;

    /** Names a lease for ever: numbers begin anew if the group is deleted. */
    record LeaseName(int incarnation, long lease) {}

    private static final class Held {
        private final Lease lease;
        private final String member;
        private long next;

        Held(Lease lease, String member) {
            this.lease = lease;
            this.member = member;
            next = lease.start();
        }

        long end() {
            return lease.isRange() ? lease.end() : endOf(lease.lane(), lease.generation());
        }
    }

    /** A position that a transaction commits once it has committed itself: what lies below is nobody's until then. */
    private record Sent(int transaction, int lane, long from, long next) {}

    /** What a commit is answered with. */
    record Answer(List<Long> stale, List<Long> pending) {}

    final boolean ordered;
    final Map<LeaseName, BitSet> processed = new HashMap<>();
    private final Random dice;
    private final BitSet[] committed = new BitSet[LANES];
    private final TreeMap<Long, Held> leases = new TreeMap<>();
    /** By lease, also of leases that have ended. */
    private final TreeMap<Long, Sent> sent = new TreeMap<>();
    private final Set<String> members = new HashSet<>();
    private final Map<Long, Long> ended = new HashMap<>();
    private int incarnation;
    private long nextLease;
    private int nextMember;

    ModelGroup(Random dice, boolean ordered) {
        this.dice = dice;
        this.ordered = ordered;
        delete();
    }

    static boolean isHollow(int lane, long ordinal) {
        return (ordinal / 3 + lane) % 4 == 0;
    }

    static long startOf(int lane, int generation) {
        return generation == 0 || lane >= OLD_LANES ? 0 : BOUNDARY;
    }

    static long endOf(int lane, int generation) {
        return generation == 0 ? BOUNDARY : RECORDS;
    }

    /** The group is deleted, and made again by the next member. */
    void delete() {
        incarnation++;
        nextLease = 1;
        leases.clear();
        members.clear();
        ended.clear();
        for (int lane = 0; lane < LANES; lane++) {
            committed[lane] = new BitSet();
        }
    }

    int incarnation() {
        return incarnation;
    }

    boolean isConsumed() {
        for (BitSet lane : committed) {
            if (lane.cardinality() < RECORDS) {
                return false;
            }
        }
        return true;
    }

    boolean isEmpty() {
        return members.isEmpty() && leases.isEmpty();
    }

    /** A session expires: its leases end. */
    void expireOne() {
        members.stream().sorted().skip(members.isEmpty() ? 0 : dice.nextInt(members.size())).findFirst().ifPresent(this::leave);
    }

    /** A lease that was not given back in time ends. */
    void revokeOne() {
        if (!leases.isEmpty()) {
            List<Long> ids = new ArrayList<>(leases.keySet());
            leases.remove(ids.get(dice.nextInt(ids.size())));
        }
    }

    boolean isMember(String member) {
        return members.contains(member);
    }

    String join(String wanted) {
        if (members.contains(wanted)) {
            return wanted;
        }
        String member = incarnation + "-" + nextMember++;
        members.add(member);
        return member;
    }

    void leave(String member) {
        members.remove(member);
        leases.values().removeIf(held -> held.member.equals(member));
    }

    /** Of the leases listed: those not held. Those held and not listed were never heard of. */
    List<Long> heartbeat(String member, List<Long> listed, List<Long> giveBack) {
        List<Long> lost = listed.stream().filter(id -> !holds(member, id)).toList();
        if (dice.nextInt(3) == 0) {
            leases.values().removeIf(held -> held.member.equals(member) && !listed.contains(held.lease.id()));
        }
        if (ordered && !listed.isEmpty() && dice.nextInt(4) == 0) {
            giveBack.add(listed.get(dice.nextInt(listed.size())));
        }
        return lost;
    }

    private boolean holds(String member, long lease) {
        Held held = leases.get(lease);
        return held != null && held.member.equals(member);
    }

    /** Old lanes are consumed to their boundary before anything behind it is leased. */
    private boolean isOpen(int generation) {
        for (int lane = 0; generation == 1 && ordered && lane < OLD_LANES; lane++) {
            if (committed[lane].nextClearBit(0) < BOUNDARY) {
                return false;
            }
        }
        return true;
    }

    List<Lease> acquire(String member, int room) {
        List<Lease> granted = new ArrayList<>();
        for (int generation = 0; generation < 2; generation++) {
            for (int lane = 0; lane < LANES && isOpen(generation); lane++) {
                if (generation == 0 && lane >= OLD_LANES) {
                    continue;
                }
                while (granted.size() < room && (ordered ? leaseLane(member, lane, generation, granted)
                        : leaseRange(member, lane, generation, granted))) {
                    if (ordered) {
                        break;
                    }
                }
            }
        }
        return granted;
    }

    private boolean leaseLane(String member, int lane, int generation, List<Lease> granted) {
        long start = committed[lane].nextClearBit((int) startOf(lane, generation));
        boolean taken = leases.values().stream().anyMatch(held -> held.lease.lane() == lane)
                || sent.values().stream().anyMatch(each -> each.lane() == lane);
        return start < endOf(lane, generation) && !taken && lease(member, lane, start, LaneReader.UNBOUNDED, generation, granted);
    }

    private boolean leaseRange(String member, int lane, int generation, List<Lease> granted) {
        BitSet busy = (BitSet) committed[lane].clone();
        leases.values().stream().filter(held -> held.lease.lane() == lane)
                .forEach(held -> busy.set((int) held.next, (int) held.lease.end()));
        sent.values().stream().filter(each -> each.lane() == lane).forEach(each -> busy.set((int) each.from(), (int) each.next()));
        int start = busy.nextClearBit((int) startOf(lane, generation));
        if (start >= endOf(lane, generation)) {
            return false;
        }
        int free = busy.nextSetBit(start) < 0 ? RECORDS : busy.nextSetBit(start);
        long end = Math.min(Math.min(free, endOf(lane, generation)), start + 1 + dice.nextInt(9));
        return lease(member, lane, start, end, LaneReader.ALL_GENERATIONS, granted);
    }

    private boolean lease(String member, int lane, long start, long end, int generation, List<Lease> granted) {
        Lease lease = new Lease(nextLease++, 0, lane, start, end, generation);
        leases.put(lease.id(), new Held(lease, member));
        granted.add(lease);
        return true;
    }

    /** The error of positions that a transaction is to commit; 0: it does. */
    int send(String member, int transaction, Map<Lease, Long> positions) {
        if (!isMember(member)) {
            return ErrorCodes.UNKNOWN_MEMBER;
        }
        Map<Long, Sent> taken = new HashMap<>();
        for (Map.Entry<Lease, Long> each : positions.entrySet()) {
            long lease = each.getKey().id();
            long next = each.getValue();
            Sent known = sent.get(lease);
            if (known != null && known.transaction() != transaction) {
                return ErrorCodes.TRANSACTION_PENDING;
            }
            if (known != null && known.next() >= next) {
                continue;
            }
            if (!holds(member, lease) || (known == null && next <= leases.get(lease).next)) {
                return ErrorCodes.STALE_LEASE;
            }
            taken.put(lease, new Sent(transaction, each.getKey().lane(), leases.get(lease).next, next));
        }
        sent.putAll(taken);
        return 0;
    }

    /** A transaction has ended. */
    void endPositions(int transaction, boolean isCommitted) {
        for (long lease : List.copyOf(sent.keySet())) {
            Sent one = sent.get(lease);
            if (one.transaction() != transaction) {
                continue;
            }
            sent.remove(lease);
            if (isCommitted) {
                committed[one.lane()].set((int) one.from(), (int) one.next());
                Held held = leases.get(lease);
                if (held != null) {
                    held.next = Math.max(held.next, one.next());
                }
            }
        }
    }

    /** What is committed must have been processed under its lease. */
    Answer commit(String member, List<LeaseCommit> commits) {
        List<Long> stale = new ArrayList<>();
        List<Long> pending = new ArrayList<>();
        for (LeaseCommit commit : commits) {
            if (!holds(member, commit.lease())) {
                if (ended.getOrDefault(commit.lease(), -1L) < commit.next()) {
                    stale.add(commit.lease());
                }
                continue;
            }
            Held held = leases.get(commit.lease());
            if (commit.next() > held.next && sent.containsKey(commit.lease())) {
                pending.add(commit.lease());
                continue;
            }
            int lane = held.lease.lane();
            BitSet done = processed.getOrDefault(new LeaseName(incarnation, commit.lease()), new BitSet());
            assertTrue(commit.next() <= held.end(), "a commit of " + held.lease + " at " + commit.next());
            for (long ordinal = held.next; ordinal < commit.next(); ordinal++) {
                assertTrue(isHollow(lane, ordinal) || done.get((int) ordinal),
                        ordinal + " of " + held.lease + " is committed and was not processed");
                committed[lane].set((int) ordinal);
            }
            held.next = Math.max(held.next, commit.next());
            if (commit.release()) {
                ended.put(commit.lease(), held.next);
                leases.remove(commit.lease());
            }
        }
        return new Answer(stale, pending);
    }
}
