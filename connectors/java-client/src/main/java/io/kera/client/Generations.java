package io.kera.client;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/**
 * How a stream's lanes grew.
 *
 * @param stream its id, 16 bytes
 * @param all oldest first; a generation's index is its number
 */
public record Generations(byte[] stream, int streamlets, List<Generation> all) {
    /** What must be consumed up to its boundary before a lane of a generation is read, if the order of keys is to be kept. */
    public enum Barrier {
        /** Nothing. */
        NONE,
        /** The lanes that the streamlet had before. */
        STREAMLET,
        /** All lanes that there were before. */
        STREAM
    }

    /**
     * A time with one number of lanes.
     *
     * @param partitions lanes of all streamlets
     * @param boundaries of each lane of the generation before: the ordinal at which this one begins
     */
    public record Generation(int number, int partitions, Barrier barrier, List<LanePosition> boundaries) {}

    static Generations read(ByteBuffer in) {
        byte[] stream = {};
        int streamlets = 0;
        List<Generation> all = new ArrayList<>();
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> stream = fields.bytes();
                case 2 -> streamlets = (int) fields.varint();
                case 3 -> all.add(generation(fields.part()));
                default -> fields.skip();
            }
        }
        return new Generations(stream, streamlets, all);
    }

    private static Generation generation(ByteBuffer in) {
        int number = 0;
        int partitions = 0;
        int barrier = 0;
        List<LanePosition> boundaries = new ArrayList<>();
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> number = (int) fields.varint();
                case 2 -> partitions = (int) fields.varint();
                case 3 -> barrier = (int) fields.varint();
                case 4 -> boundaries.add(position(fields.part()));
                default -> fields.skip();
            }
        }
        if (barrier >= Barrier.values().length) {
            throw new IllegalArgumentException("a barrier of scope " + barrier + " is not known; use a newer client");
        }
        return new Generation(number, partitions, Barrier.values()[barrier], boundaries);
    }

    private static LanePosition position(ByteBuffer in) {
        long[] numbers = new long[4];
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            if (field < numbers.length) {
                numbers[field] = fields.varint();
            } else {
                fields.skip();
            }
        }
        return new LanePosition((int) numbers[1], (int) numbers[2], numbers[3]);
    }
}
