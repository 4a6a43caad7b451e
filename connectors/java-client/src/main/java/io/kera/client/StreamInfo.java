package io.kera.client;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/**
 * A stream.
 *
 * @param id its id, 16 bytes: a name can be used again, an id cannot
 * @param laneGeneration 0 at creation, one more at each growth of lanes
 */
public record StreamInfo(String name, byte[] id, int laneGeneration, List<Streamlet> streamlets) {
    /** A streamlet, and the address of the broker that serves it; empty if none does. */
    public record Streamlet(int number, String owner) {}

    static StreamInfo read(ByteBuffer in) {
        String name = "";
        byte[] id = {};
        int generation = 0;
        List<Streamlet> streamlets = new ArrayList<>();
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> name = fields.text();
                case 2 -> id = fields.bytes();
                case 4 -> streamlets.add(streamlet(fields.part()));
                case 5 -> generation = (int) fields.varint();
                default -> fields.skip();
            }
        }
        return new StreamInfo(name, id, generation, streamlets);
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
}
