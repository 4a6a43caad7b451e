package io.kera.client;

import java.time.Duration;
import java.util.List;

/**
 * Settings of a {@link Consumer}.
 *
 * @param bootstrap addresses of brokers, HOST:PORT
 * @param connect how to connect
 * @param order how the group shares lanes
 * @param start where a group begins that has committed nothing
 * @param session how long after its last sign of life a member's leases end
 * @param commitInterval how often what is processed is committed; zero: only {@link Consumer#commit} commits
 * @param memoryLimit bytes that are read ahead, or one batch per lease if that is more
 * @param maxLeases lanes, or ranges of them, that the member holds at a time; with {@link Order#KEY} a member takes its share
 * @param name of the member, for people
 * @param rack that the member is in, as brokers name theirs ({@code cluster.rack}): what is in closed groups is read from a replica in
 *     the same rack where there is one, unless the owner is in it too. Empty: all is read from owners
 */
public record ConsumerOptions(
        List<String> bootstrap,
        ConnectOptions connect,
        Order order,
        StartAt start,
        Duration session,
        Duration commitInterval,
        int memoryLimit,
        int maxLeases,
        String name,
        String rack) {
    private static final int MAX_LEASES = 1024;

    /** How members of a group share lanes. All members of a group have the same. */
    public enum Order {
        /** One member follows a lane: its records are seen in order. */
        LANE,
        /** Ranges of a lane go to any member: members may outnumber lanes. */
        NONE,
        /**
         * The keys of a lane, in 64 slices, are shared by members, which may outnumber lanes: the records of each key are seen in order. Each
         * member reads all of its lanes, and passes over the keys of others.
         */
        KEY
    }

    public ConsumerOptions {
        bootstrap = List.copyOf(bootstrap);
        check(!bootstrap.isEmpty(), "name a broker to begin with");
        check(session.toMillis() >= 1_000 && session.toMillis() <= 300_000, "session is " + session + ": use 1 s to 5 min");
        check(!commitInterval.isNegative() && commitInterval.compareTo(Duration.ofDays(1)) <= 0,
                "commitInterval is " + commitInterval + ": use zero to a day");
        check(memoryLimit > 0, "memoryLimit is " + memoryLimit + ": use 1 or more");
        check(maxLeases > 0, "maxLeases is " + maxLeases + ": use 1 or more");
        check(order != Order.KEY || maxLeases == MAX_LEASES, "maxLeases is not for order KEY, with which a member takes its share: leave it out");
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalArgumentException(otherwise);
        }
    }

    /** In order, from the earliest record, a session of 10 s, a commit each second, 32 MiB read ahead, 1024 leases. */
    public static ConsumerOptions to(String... bootstrap) {
        return new ConsumerOptions(
                List.of(bootstrap),
                ConnectOptions.DEFAULT,
                Order.LANE,
                StartAt.EARLIEST,
                Duration.ofSeconds(10),
                Duration.ofSeconds(1),
                32 << 20,
                MAX_LEASES,
                "",
                "");
    }

    public ConsumerOptions withConnect(ConnectOptions other) {
        return new ConsumerOptions(bootstrap, other, order, start, session, commitInterval, memoryLimit, maxLeases, name, rack);
    }

    public ConsumerOptions withOrder(Order other) {
        return new ConsumerOptions(bootstrap, connect, other, start, session, commitInterval, memoryLimit, maxLeases, name, rack);
    }

    public ConsumerOptions withStart(StartAt other) {
        return new ConsumerOptions(bootstrap, connect, order, other, session, commitInterval, memoryLimit, maxLeases, name, rack);
    }

    public ConsumerOptions withSession(Duration other) {
        return new ConsumerOptions(bootstrap, connect, order, start, other, commitInterval, memoryLimit, maxLeases, name, rack);
    }

    public ConsumerOptions withCommitInterval(Duration other) {
        return new ConsumerOptions(bootstrap, connect, order, start, session, other, memoryLimit, maxLeases, name, rack);
    }

    public ConsumerOptions withMemoryLimit(int bytes) {
        return new ConsumerOptions(bootstrap, connect, order, start, session, commitInterval, bytes, maxLeases, name, rack);
    }

    public ConsumerOptions withMaxLeases(int most) {
        return new ConsumerOptions(bootstrap, connect, order, start, session, commitInterval, memoryLimit, most, name, rack);
    }

    public ConsumerOptions withName(String other) {
        return new ConsumerOptions(bootstrap, connect, order, start, session, commitInterval, memoryLimit, maxLeases, other, rack);
    }

    public ConsumerOptions withRack(String other) {
        return new ConsumerOptions(bootstrap, connect, order, start, session, commitInterval, memoryLimit, maxLeases, name, other);
    }
}
