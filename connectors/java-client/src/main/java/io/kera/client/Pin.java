package io.kera.client;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Positions of a stream under a name: it needs every record at and above them.
 *
 * @param job what it is for; may be empty
 * @param owner who made it, as {@code User:NAME}
 * @param created when its positions were set, by the clock of brokers
 * @param positions of every lane that there was then; lanes that came later are needed from their beginning
 * @param maxAge it holds nothing back once it is older
 * @param maxBytes nor once that would be more bytes, over all lanes
 * @param lost what is gone that it needs; then it holds nothing back
 * @param heldBytes that retention would have deleted without it
 */
public record Pin(
        String stream,
        String name,
        String job,
        String owner,
        Instant created,
        List<LanePosition> positions,
        Policy policy,
        Duration maxAge,
        long maxBytes,
        Optional<Loss> lost,
        long heldBytes) {
    /** What retention does about a pin. */
    public enum Policy {
        /** It deletes what the pin needs, and tells. */
        WARN,
        /** It keeps that, within the pin's bounds. */
        WAIT
    }

    /** Why records are gone that a pin needs. */
    public enum Cause {
        /** Retention was due, and the policy is {@link Policy#WARN}. */
        RETENTION,
        /** Retention was due, and the pin older than its bound. */
        AGE,
        /** Retention was due, and the pin would have held back more than its bound. */
        BYTES,
        /** The lane was trimmed. */
        TRIM,
        /** One that this client does not know. */
        UNKNOWN
    }

    /**
     * The first records that a pin lost.
     *
     * @param ordinal records from here on are gone
     * @param at when, by the clock of brokers
     */
    public record Loss(int streamlet, int lane, long ordinal, Cause cause, Instant at) {}

    /**
     * What brokers tell of pins.
     *
     * @param pins by stream and name
     * @param now the clock of the broker that answered, by which pins grow old
     * @param silentBrokers that did not answer: {@link Pin#heldBytes} lacks what they hold back
     */
    public record All(List<Pin> pins, Instant now, List<Integer> silentBrokers) {}

    static All readAll(ByteBuffer in) {
        List<Pin> pins = new ArrayList<>();
        List<Integer> silent = new ArrayList<>();
        long now = 0;
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> pins.add(read(fields.part()));
                case 2 -> now = fields.varint();
                case 3 -> silent.addAll(fields.numbers());
                default -> fields.skip();
            }
        }
        return new All(List.copyOf(pins), Instant.ofEpochMilli(now), List.copyOf(silent));
    }

    /** The pin in an answer to CreatePin or DeletePin. */
    static Pin readAnswer(ByteBuffer in) {
        Pin pin = null;
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            if (field == 1) {
                pin = read(fields.part());
            } else {
                fields.skip();
            }
        }
        return pin == null ? read(ByteBuffer.allocate(0)) : pin;
    }

    private static Pin read(ByteBuffer in) {
        String[] texts = {"", "", "", "", ""};
        long[] numbers = new long[12];
        List<LanePosition> positions = new ArrayList<>();
        Loss lost = null;
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1, 2, 3, 4 -> texts[field] = fields.text();
                case 5, 7, 8, 9, 11 -> numbers[field] = fields.varint();
                case 6 -> {
                    long[] at = numbers(fields.part());
                    positions.add(new LanePosition((int) at[1], (int) at[2], at[3]));
                }
                case 10 -> {
                    long[] at = numbers(fields.part());
                    lost = new Loss((int) at[1], (int) at[2], at[3], cause(at[4]), Instant.ofEpochMilli(at[5]));
                }
                default -> fields.skip();
            }
        }
        Policy policy = numbers[9] == Policy.WAIT.ordinal() + 1 ? Policy.WAIT : Policy.WARN;
        return new Pin(texts[1], texts[2], texts[3], texts[4], Instant.ofEpochMilli(numbers[5]), List.copyOf(positions), policy,
                Duration.ofMillis(numbers[7]), numbers[8], Optional.ofNullable(lost), numbers[11]);
    }

    /** A message of five numbers at most. */
    private static long[] numbers(ByteBuffer in) {
        long[] numbers = new long[6];
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            if (field < numbers.length) {
                numbers[field] = fields.varint();
            } else {
                fields.skip();
            }
        }
        return numbers;
    }

    private static Cause cause(long number) {
        return number >= 1 && number < Cause.values().length ? Cause.values()[(int) number - 1] : Cause.UNKNOWN;
    }
}
