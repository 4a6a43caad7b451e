package io.kera.client;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** The messages of a group's members, as control.proto has them. */
final class GroupCalls {
    private final String group;
    private final String stream;
    private final byte[] streamId;
    private final ConsumerOptions options;

    GroupCalls(String group, StreamInfo stream, ConsumerOptions options) {
        this.group = group;
        this.stream = stream.name();
        this.streamId = stream.id();
        this.options = options;
    }

    static int method(Membership.Kind kind) {
        return switch (kind) {
            case JOIN -> Methods.JOIN;
            case HEARTBEAT -> Methods.HEARTBEAT;
            case ACQUIRE -> Methods.ACQUIRE;
            case COMMIT -> Methods.COMMIT;
            case LEAVE -> Methods.LEAVE;
        };
    }

    byte[] request(Membership.Call call) {
        Wire.Writer out = new Wire.Writer().text(1, group);
        switch (call.kind()) {
            case JOIN -> {
                out.text(2, stream).number(3, options.order().ordinal()).text(4, options.name());
                out.number(5, options.session().toMillis()).bytes(6, options.start().encoded()).text(7, call.member());
            }
            case HEARTBEAT -> {
                out.text(2, call.member());
                call.leases().forEach(lease -> out.present(3, lease));
            }
            case ACQUIRE -> out.text(2, call.member()).number(3, call.room()).number(4, Membership.ACQUIRE_WAIT_MILLIS);
            case COMMIT -> {
                out.text(2, call.member());
                call.commits().forEach(commit -> out.bytes(3, encoded(commit)));
                // Leases that wait for a transaction are named, and the others are committed.
                out.number(4, 1);
            }
            case LEAVE -> out.text(2, call.member());
        }
        return out.done();
    }

    /** Has a transaction, of which the group is part, commit positions of a member's leases. */
    static byte[] sendPositions(TransactionHandle handle, String group, String member, List<LeaseCommit> commits) {
        Wire.Writer out = new Wire.Writer().bytes(1, handle.encoded()).text(2, group).text(3, member);
        commits.forEach(commit -> out.bytes(4, encoded(commit)));
        return out.done();
    }

    private static byte[] encoded(LeaseCommit commit) {
        Wire.Writer out = new Wire.Writer().number(1, commit.lease());
        if (commit.next() != LeaseCommit.NONE) {
            out.bytes(2, new Wire.Writer().number(1, commit.next()).done());
        }
        return out.number(3, commit.release() ? 1 : 0).done();
    }

    /** Tells the membership what was answered. */
    void answered(Membership membership, Membership.Call call, ByteBuffer reply, long now) {
        Wire.Reader fields = new Wire.Reader(reply);
        switch (call.kind()) {
            case JOIN -> joined(membership, call, fields, now);
            case HEARTBEAT -> {
                List<Long> giveBack = new ArrayList<>();
                List<Long> lost = new ArrayList<>();
                numbers(fields, giveBack, lost);
                membership.heartbeatAnswered(call, lost, giveBack, now);
            }
            case ACQUIRE -> acquired(membership, call, leases(fields), now);
            case COMMIT -> {
                List<Long> stale = new ArrayList<>();
                List<Long> pending = new ArrayList<>();
                numbers(fields, stale, pending);
                membership.committed(call, stale, pending, now);
            }
            case LEAVE -> membership.leaveAnswered(call, now);
        }
    }

    private static void joined(Membership membership, Membership.Call call, Wire.Reader fields, long now) {
        String member = "";
        int heartbeatMillis = 0;
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> member = fields.text();
                case 3 -> heartbeatMillis = (int) fields.varint();
                default -> fields.skip();
            }
        }
        membership.joinedAs(call, member, heartbeatMillis, now);
    }

    private void acquired(Membership membership, Membership.Call call, List<Lease> leases, long now) {
        boolean byKey = options.order() == ConsumerOptions.Order.KEY;
        if (byKey && leases.stream().anyMatch(lease -> !lease.slices().areShared())) {
            membership.failed(call, new KeraException(ErrorCodes.INVALID_ARGUMENT, "the broker that coordinates group " + group
                    + " does not know the order of keys, and leases whole lanes: update all brokers, run `kera cluster finalize`, delete"
                    + " the group, and start again"), now);
            return;
        }
        membership.acquired(call, leases, now);
    }

    /** The numbers of the fields 1 and 2, packed or not. */
    private static void numbers(Wire.Reader fields, List<Long> first, List<Long> second) {
        for (int field; (field = fields.next()) != 0; ) {
            if (field > 2) {
                fields.skip();
                continue;
            }
            (field == 1 ? first : second).addAll(fields.longs());
        }
    }

    private List<Lease> leases(Wire.Reader fields) {
        List<Lease> leases = new ArrayList<>();
        for (int field; (field = fields.next()) != 0; ) {
            if (field != 1) {
                fields.skip();
                continue;
            }
            Lease lease = lease(fields.part());
            if (lease != null) {
                leases.add(lease);
            }
        }
        return leases;
    }

    /** A lease; null if it is of another stream, whose name this one has now. */
    private Lease lease(ByteBuffer in) {
        byte[] of = {};
        long start = 0;
        long slices = 0;
        List<Long> above = new ArrayList<>();
        long[] numbers = {0, 0, 0, 0, 0, 0, 0, LaneReader.ALL_GENERATIONS};
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 2 -> of = fields.bytes();
                case 5 -> start = LaneReader.ordinal(fields.part());
                case 1, 3, 4, 6, 7 -> numbers[field] = fields.varint();
                case 8 -> slices = fields.fixed64();
                case 9 -> above.addAll(fields.longs());
                default -> fields.skip();
            }
        }
        if (!Arrays.equals(of, streamId)) {
            return null;
        }
        long end = numbers[6] == 0 ? LaneReader.UNBOUNDED : numbers[6];
        Slices leased = slices == 0 ? Slices.ALL : Slices.leased(slices, start, above);
        return new Lease(numbers[1], (int) numbers[3], (int) numbers[4], start, end, (int) numbers[7], leased);
    }
}
