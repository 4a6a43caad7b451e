package io.kera.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/**
 * Creates, lists and deletes streams and pins, and tells where lanes are; lists, describes, resets and deletes consumer groups. Any broker
 * answers what is asked of streams, and the next is asked where one does not. Thread-safe.
 */
public final class Admin implements AutoCloseable {
    /** Streams or groups in one reply, positions in one request. */
    private static final int PAGE = 1000;
    /** How a stream is cleaned up. */
    private static final int COMPACT = 1;
    /** What is asked of groups is asked again for so long. */
    private static final long GROUP_NANOS = Duration.ofSeconds(30).toNanos();

    private final Cluster cluster;
    private final ConnectOptions options;
    private final CoordinatorCalls groupCalls;

    /**
     * Uses the first broker that answers.
     *
     * @param addresses HOST:PORT each
     */
    public Admin(List<String> addresses, ConnectOptions options) {
        this(addresses, options, GROUP_NANOS);
    }

    Admin(List<String> addresses, ConnectOptions options, long groupNanos) {
        this.cluster = new Cluster(addresses, options);
        this.options = options;
        groupCalls = new CoordinatorCalls(cluster, options, groupNanos, "group", cluster::coordinator);
    }

    /** Creates a stream of so many streamlets, of so many lanes each. */
    public StreamInfo createStream(String name, int streamlets, int lanes) throws IOException {
        byte[] config = new Wire.Writer().present(1, streamlets).present(2, lanes).done();
        byte[] request = new Wire.Writer().text(1, name).bytes(2, config).done();
        return StreamInfo.read(cluster.call(Methods.CREATE_STREAM, request));
    }

    /** The same for one that keeps the newest record of each key, and deletes none by age or size. */
    public StreamInfo createCompactedStream(String name, int streamlets, int lanes) throws IOException {
        return createCompactedStream(name, streamlets, lanes, Duration.ZERO);
    }

    /**
     * The same for one whose younger records all stay.
     *
     * @param minCompactionLag how old a record is before it may be removed for a newer one of its key; to the millisecond
     */
    public StreamInfo createCompactedStream(String name, int streamlets, int lanes, Duration minCompactionLag) throws IOException {
        byte[] config = new Wire.Writer().present(1, streamlets).present(2, lanes).present(18, COMPACT)
                .present(19, minCompactionLag.toMillis()).done();
        byte[] request = new Wire.Writer().text(1, name).bytes(2, config).done();
        return StreamInfo.read(cluster.call(Methods.CREATE_STREAM, request));
    }

    /** Gives a stream more lanes, so that there are so many in all. */
    public StreamInfo growStream(String name, int partitions) throws IOException {
        byte[] config = new Wire.Writer().present(14, partitions).done();
        byte[] request = new Wire.Writer().text(1, name).bytes(2, config).done();
        return StreamInfo.read(cluster.call(Methods.ALTER_STREAM, request));
    }

    /** Looks a stream up. */
    public StreamInfo stream(String name) throws IOException {
        return cluster.stream(name);
    }

    /** All streams, by name. */
    public List<StreamInfo> streams() throws IOException {
        List<StreamInfo> streams = new ArrayList<>();
        boolean more = true;
        while (more) {
            String after = streams.isEmpty() ? "" : streams.get(streams.size() - 1).name();
            byte[] request = new Wire.Writer().text(2, after).number(3, PAGE).done();
            more = false;
            Wire.Reader fields = new Wire.Reader(cluster.call(Methods.LIST_STREAMS, request));
            for (int field; (field = fields.next()) != 0; ) {
                switch (field) {
                    case 1 -> streams.add(StreamInfo.read(fields.part()));
                    case 2 -> more = fields.varint() != 0;
                    default -> fields.skip();
                }
            }
        }
        return streams;
    }

    /**
     * Deletes a stream and its records: the one that has the name now. A request that arrives late, as a connection was cut
     * off, deletes no other one that was made under the name since.
     */
    public void deleteStream(String name) throws IOException {
        byte[] id = cluster.stream(name).id();
        cluster.call(Methods.DELETE_STREAM, new Wire.Writer().text(1, name).bytes(2, id).done());
    }

    /** How a stream's lanes grew. */
    public Generations generations(String name) throws IOException {
        List<Generations.Generation> all = new ArrayList<>();
        while (true) {
            byte[] request = new Wire.Writer().text(1, name).number(2, all.size()).done();
            Generations page = Generations.read(cluster.call(Methods.GET_GENERATIONS, request));
            all.addAll(page.all());
            if (page.all().isEmpty()) {
                return new Generations(page.stream(), page.streamlets(), all);
            }
        }
    }

    /** Every lane of a stream, with the first ordinal that is stored and the one behind the last. */
    public List<LaneBounds> bounds(String name) throws IOException {
        return find(new Wire.Writer().text(1, name).present(2, 1).done());
    }

    /**
     * Where a lane begins and ends.
     *
     * @throws IOException if its owner is away, or there is no such lane
     */
    public LaneBounds bounds(String name, int streamlet, int lane) throws IOException {
        for (LaneBounds each : bounds(name)) {
            if (each.streamlet() == streamlet && each.lane() == lane) {
                return each;
            }
        }
        throw new IOException("where lane " + name + ":" + streamlet + "/" + lane + " begins is not known: its owner is away");
    }

    /**
     * Where lanes begin and end, with where the first record at or after a time is in place of the first that is stored: the ordinal of its
     * batch's first record, which may be older.
     *
     * @param timestamp milliseconds since 1970
     */
    public List<LaneBounds> boundsFrom(String name, long timestamp) throws IOException {
        return find(new Wire.Writer().text(1, name).present(4, timestamp).done());
    }

    /**
     * Pins positions of a stream under a name, or moves the pin of that name: what retention is to delete of the records at and above
     * them waits for the pin, or is told of, as its policy says. If its answer is lost, ask again: it is the same to call it twice.
     *
     * @return the pin; one that has {@link Pin#lost} came too late
     * @throws KeraException with {@link ErrorCodes#INVALID_ARGUMENT} if a lane of the stream has no position, or begins above its
     *     position, or the cluster version does not have pins yet; with {@link ErrorCodes#NOT_AUTHORIZED} if the user may not have
     *     retention wait
     */
    public Pin createPin(PinRequest request) throws IOException {
        PinRequest whole = request.hasStreamId() ? request : request.withStreamId(cluster.stream(request.stream()).id());
        return Pin.readAnswer(cluster.call(Methods.CREATE_PIN, whole.encoded()));
    }

    /** The pins of all streams that the user may see, with the bytes that each holds back. */
    public Pin.All pins() throws IOException {
        return pins("");
    }

    /** The pins of a stream. */
    public Pin.All pins(String stream) throws IOException {
        return Pin.readAll(cluster.call(Methods.LIST_PINS, named(stream)));
    }

    /**
     * Deletes a pin, the one that has the name now: what it has held back is deleted as soon as retention looks again. A request that
     * arrives late, as a connection was cut off, deletes none that was made or moved since.
     *
     * @return the pin as it was
     * @throws KeraException with {@link ErrorCodes#INVALID_ARGUMENT} if there is none
     * @throws IOException if no answer came: it may be deleted
     */
    public Pin deletePin(String stream, String name) throws IOException {
        Wire.Writer request = new Wire.Writer().text(1, stream).text(2, name).bytes(3, cluster.stream(stream).id());
        pins(stream).pins().stream().filter(pin -> pin.name().equals(name)).findAny()
                .ifPresent(pin -> request.present(4, pin.created().toEpochMilli()));
        return Pin.readAnswer(cluster.call(Methods.DELETE_PIN, request.done()));
    }

    private List<LaneBounds> find(byte[] request) throws IOException {
        List<LaneBounds> lanes = new ArrayList<>();
        Wire.Reader fields = new Wire.Reader(cluster.call(Methods.FIND_ORDINALS, request));
        for (int field; (field = fields.next()) != 0; ) {
            if (field == 1) {
                lanes.add(lane(fields.part()));
            } else {
                fields.skip();
            }
        }
        return lanes;
    }

    private static LaneBounds lane(ByteBuffer in) {
        long[] numbers = new long[6];
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            if (field == 3) {
                numbers[3] = LaneReader.ordinal(fields.part());
            } else if (field < numbers.length) {
                numbers[field] = fields.varint();
            } else {
                fields.skip();
            }
        }
        return new LaneBounds((int) numbers[1], (int) numbers[2], numbers[3], numbers[4]);
    }

    /**
     * Sets where a consumer group stands, so that its lag is shown. The group must have no members.
     *
     * @throws KeraException with {@link ErrorCodes#GROUP_NOT_EMPTY} if it has
     */
    public void commitPositions(String group, String stream, List<LanePosition> positions) throws IOException {
        byte[] id = cluster.stream(stream).id();
        try (Connection coordinator = new Connection(cluster.coordinator(group), options)) {
            for (int from = 0; from < positions.size(); from += PAGE) {
                List<LanePosition> part = positions.subList(from, Math.min(from + PAGE, positions.size()));
                coordinator.call(Methods.COMMIT_POSITIONS, positionsRequest(group, stream, id, part));
            }
        }
    }

    /**
     * All consumer groups, by name, with their lag; without those that the user may not see. Coordinators that are reading their
     * state are waited for: without one of them it would not be all.
     *
     * @throws IOException if one has not answered within 30 s
     */
    public List<GroupSummary> groups() throws IOException {
        List<GroupSummary> groups = new ArrayList<>();
        boolean more = true;
        while (more) {
            int before = groups.size();
            String after = groups.isEmpty() ? "" : groups.get(before - 1).group();
            byte[] request = new Wire.Writer().text(2, after).number(3, PAGE).done();
            more = false;
            Wire.Reader fields = new Wire.Reader(
                    groupCalls.callAny("one of the coordinators of groups", Methods.LIST_GROUPS, request));
            for (int field; (field = fields.next()) != 0; ) {
                switch (field) {
                    case 1 -> groups.add(GroupSummary.read(fields.part()));
                    case 2 -> more = fields.varint() != 0;
                    default -> fields.skip();
                }
            }
            // A page without a group would be asked for again for ever.
            more &= groups.size() > before;
        }
        return groups;
    }

    /**
     * A consumer group's members, and its position and lag in each lane or partition.
     *
     * @throws KeraException with {@link ErrorCodes#UNKNOWN_CONSUMER_GROUP} if there is none
     * @throws IOException if its coordinator has not answered within 30 s
     */
    public GroupDescription group(String group) throws IOException {
        return GroupDescription.read(groupCalls.read(group, Methods.DESCRIBE_GROUP, named(group)));
    }

    /**
     * Has a consumer group go on elsewhere. Its members must have left.
     *
     * @return where it stands now in what was reset
     * @throws KeraException with {@link ErrorCodes#GROUP_NOT_EMPTY} if it has members, with {@link ErrorCodes#UNKNOWN_CONSUMER_GROUP} if
     *     there is none
     * @throws IOException if its coordinator has not answered within 30 s, or refuses after an attempt whose answer was lost: it may
     *     have been done, which {@link #group} tells
     */
    public GroupProgress resetGroup(String group, GroupPart part, StartAt to) throws IOException {
        return GroupProgress.read(groupCalls.change(group, Methods.RESET_GROUP, part.request(group, to), 0));
    }

    /**
     * Has brokers forget a consumer group and its positions. Its members must have left; the records of its streams stay. If the answer to
     * an attempt is lost, and the next one finds no group, it is deleted.
     *
     * @throws KeraException with {@link ErrorCodes#GROUP_NOT_EMPTY} if it has members, with {@link ErrorCodes#UNKNOWN_CONSUMER_GROUP} if
     *     there is none
     * @throws IOException as {@link #resetGroup}
     */
    public void deleteGroup(String group) throws IOException {
        groupCalls.change(group, Methods.DELETE_GROUP, named(group), ErrorCodes.UNKNOWN_CONSUMER_GROUP);
    }

    static byte[] positionsRequest(String group, String stream, byte[] id, List<LanePosition> positions) {
        Wire.Writer request = new Wire.Writer().text(1, group).text(2, stream);
        for (LanePosition each : positions) {
            Wire.Writer position = new Wire.Writer().number(1, each.streamlet()).number(2, each.lane());
            request.bytes(3, position.number(3, each.ordinal()).done());
        }
        if (id.length > 0) {
            request.bytes(4, id);
        }
        return request.done();
    }

    static byte[] named(String name) {
        return new Wire.Writer().text(1, name).done();
    }

    @Override
    public void close() {
        groupCalls.close();
    }

    /**
     * What is stored of a lane.
     *
     * @param start where to begin
     * @param head the ordinal behind the last record that can be read
     */
    public record LaneBounds(int streamlet, int lane, long start, long head) {}
}
