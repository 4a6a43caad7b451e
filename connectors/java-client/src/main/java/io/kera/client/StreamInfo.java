package io.kera.client;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/**
 * A stream.
 *
 * @param id its id, 16 bytes: a name can be used again, an id cannot
 * @param laneGeneration 0 at creation, one more at each growth of lanes
 * @param partitions lanes of all streamlets
 * @param byKey true if keys choose lanes; otherwise owners do
 * @param maxBatchBytes bytes of the largest batch that it takes
 * @param inMemory true if acknowledged records may be lost with their broker's process
 */
public record StreamInfo(
        String name,
        byte[] id,
        int laneGeneration,
        int partitions,
        boolean byKey,
        int maxBatchBytes,
        boolean inMemory,
        List<Streamlet> streamlets) {
    private static final int ACK_MEMORY = 1;

    /** A streamlet, and the address of the broker that serves it; empty if none does. */
    public record Streamlet(int number, String owner) {}

    static StreamInfo read(ByteBuffer in) {
        String name = "";
        byte[] id = {};
        int generation = 0;
        int[] config = new int[16];
        List<Streamlet> streamlets = new ArrayList<>();
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> name = fields.text();
                case 2 -> id = fields.bytes();
                case 3 -> config(fields.part(), config);
                case 4 -> streamlets.add(streamlet(fields.part()));
                case 5 -> generation = (int) fields.varint();
                default -> fields.skip();
            }
        }
        int lanes = config[2] * streamlets.size();
        int partitions = config[14] == 0 ? lanes : config[14];
        return new StreamInfo(
                name, id, generation, partitions, config[3] == 0, config[10], config[6] == ACK_MEMORY, streamlets);
    }

    private static void config(ByteBuffer in, int[] config) {
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            // All of them are numbers; those that count here have the numbers 2 to 14.
            if (field < config.length && fields.isNumber()) {
                config[field] = (int) fields.varint();
            } else {
                fields.skip();
            }
        }
    }

    private static Streamlet streamlet(ByteBuffer in) {
        int number = 0;
        String owner = "";
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> number = (int) fields.varint();
                case 2 -> owner = fields.text();
                default -> fields.skip();
            }
        }
        return new Streamlet(number, owner);
    }

    /** The address of a streamlet's owner; empty if none serves it. */
    public String owner(int streamlet) {
        for (Streamlet one : streamlets) {
            if (one.number() == streamlet) {
                return one.owner();
            }
        }
        return "";
    }
}
