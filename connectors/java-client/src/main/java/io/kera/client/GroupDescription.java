package io.kera.client;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/**
 * A consumer group: its members, and how far it is.
 *
 * @param generation of a group of Kafka's clients; of type {@code consumer} it is the group's epoch
 * @param protocol how the members of a group of Kafka's clients divide the work; empty if they do not say
 */
public record GroupDescription(
        GroupSummary summary, List<Member> members, GroupProgress progress, int generation, String protocol) {
    /**
     * A member.
     *
     * @param member its id
     * @param client the name that it gave itself, for people
     * @param leases how many it holds, in a native group
     * @param sinceHeartbeat how long ago it was heard of
     * @param host where it is, of one of Kafka's clients
     * @param instance the name of a static member of Kafka's; empty of others
     * @param partitions assigned to it, of one of Kafka's clients
     * @param epoch of a member of a group of type {@code consumer}: it is the group's once the member has its share
     * @param revoking partitions that it is to give back and has not yet, in a group of type {@code consumer}
     */
    public record Member(
            String member,
            String client,
            int leases,
            Duration sinceHeartbeat,
            String host,
            String instance,
            int partitions,
            int epoch,
            int revoking) {}

    static GroupDescription read(ByteBuffer in) {
        GroupSummary summary = GroupSummary.read(ByteBuffer.allocate(0));
        List<Member> members = new ArrayList<>();
        GroupProgress.Builder progress = new GroupProgress.Builder();
        int generation = 0;
        String protocol = "";
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> summary = GroupSummary.read(fields.part());
                case 2 -> members.add(member(fields.part()));
                case 3 -> progress.lane(fields.part());
                case 4 -> progress.partition(fields.part());
                case 5 -> generation = (int) fields.varint();
                case 6 -> protocol = fields.text();
                default -> fields.skip();
            }
        }
        return new GroupDescription(summary, List.copyOf(members), progress.done(), generation, protocol);
    }

    private static Member member(ByteBuffer in) {
        String member = "";
        String client = "";
        String host = "";
        String instance = "";
        long[] numbers = new long[10];
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> member = fields.text();
                case 2 -> client = fields.text();
                case 3, 4, 7, 8, 9 -> numbers[field] = fields.varint();
                case 5 -> host = fields.text();
                case 6 -> instance = fields.text();
                default -> fields.skip();
            }
        }
        return new Member(member, client, (int) numbers[3], Duration.ofMillis(numbers[4]), host, instance, (int) numbers[7],
                (int) numbers[8], (int) numbers[9]);
    }
}
