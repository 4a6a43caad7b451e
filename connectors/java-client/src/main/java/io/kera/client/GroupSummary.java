package io.kera.client;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/**
 * A consumer group at a glance.
 *
 * @param group its name
 * @param stream what a native group reads; empty of groups of Kafka's clients, and where the user may not see it
 * @param order how the members of a native group share lanes; null of groups of Kafka's clients, and if this client does not know it
 * @param members how many it has
 * @param leases how many the members of a native group hold
 * @param lag records that it has not consumed: at least so many, if there are {@code unknownLanes}
 * @param unknownLanes lanes, or partitions, whose owners have not told where they end: the lag lacks theirs
 * @param state of groups of Kafka's clients: {@code Empty}, {@code PreparingRebalance}, {@code CompletingRebalance},
 *     {@code Reconciling} or {@code Stable}; empty of others
 * @param kafkaType of groups of Kafka's clients: {@code classic}, {@code consumer} or {@code share}; empty of others
 * @param streams in which a group of Kafka's clients has committed offsets
 */
public record GroupSummary(
        String group,
        Kind kind,
        String stream,
        ConsumerOptions.Order order,
        int members,
        int leases,
        long lag,
        int unknownLanes,
        String state,
        String kafkaType,
        List<StreamLag> streams) {
    /** Whose clients the members are. */
    public enum Kind {
        /** Kera's own, such as {@link Consumer}: one stream, leases. */
        NATIVE,
        /** Kafka's: any streams, offsets by partition. */
        KAFKA,
        /** This client does not know it; use a newer one. */
        UNKNOWN
    }

    /**
     * Of a group of Kafka's clients in one stream.
     *
     * @param lag records that it has not consumed
     * @param unknownPartitions partitions whose owners have not told where they end: the lag lacks theirs
     */
    public record StreamLag(String stream, long lag, int unknownPartitions) {}

    static GroupSummary read(ByteBuffer in) {
        String group = "";
        String stream = "";
        String state = "";
        String kafkaType = "";
        long[] numbers = new long[12];
        List<StreamLag> streams = new ArrayList<>();
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> group = fields.text();
                case 2 -> stream = fields.text();
                case 3, 4, 5, 6, 7, 11 -> numbers[field] = fields.varint();
                case 8 -> state = fields.text();
                case 9 -> streams.add(streamLag(fields.part()));
                case 10 -> kafkaType = fields.text();
                default -> fields.skip();
            }
        }
        Kind kind = Kind.values()[(int) Math.min(numbers[7], Kind.UNKNOWN.ordinal())];
        ConsumerOptions.Order[] orders = ConsumerOptions.Order.values();
        ConsumerOptions.Order order = kind == Kind.NATIVE && numbers[3] < orders.length ? orders[(int) numbers[3]] : null;
        if (kind == Kind.KAFKA && kafkaType.isEmpty()) {
            // Brokers of earlier versions know one kind.
            kafkaType = "classic";
        }
        return new GroupSummary(group, kind, stream, order, (int) numbers[4], (int) numbers[5], numbers[6], (int) numbers[11],
                state, kafkaType, List.copyOf(streams));
    }

    private static StreamLag streamLag(ByteBuffer in) {
        String stream = "";
        long[] numbers = new long[4];
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> stream = fields.text();
                case 2, 3 -> numbers[field] = fields.varint();
                default -> fields.skip();
            }
        }
        return new StreamLag(stream, numbers[2], (int) numbers[3]);
    }
}
