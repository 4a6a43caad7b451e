package io.kera.samza;

import java.util.HexFormat;
import org.apache.samza.SamzaException;

/**
 * A place in a lane, as Samza's offsets have it: {@code ORDINAL@STREAM/LANES}, with the stream's id and how many lanes it had. An
 * ordinal alone is a place in whichever stream has the name.
 *
 * @param stream the stream's id, 32 hexadecimal digits; null: not known
 * @param lanes of the stream, when it was read; 0: not known
 */
record Position(long ordinal, String stream, int lanes) {
    private static final int ID_DIGITS = 32;

    /** @throws SamzaException if the text is none */
    static Position of(String offset) {
        try {
            int at = offset.indexOf('@');
            if (at < 0) {
                return new Position(ordinal(offset), null, 0);
            }
            int slash = offset.indexOf('/', at);
            String id = offset.substring(at + 1, slash);
            int lanes = Integer.parseInt(offset.substring(slash + 1));
            if (lanes < 1 || id.length() != ID_DIGITS || HexFormat.of().parseHex(id).length != ID_DIGITS / 2) {
                throw new IllegalArgumentException("there is no such stream");
            }
            return new Position(ordinal(offset.substring(0, at)), id, lanes);
        } catch (IllegalArgumentException | IndexOutOfBoundsException error) {
            throw new SamzaException("\"" + offset + "\" is no offset of a stream of Kera: it is a record's ordinal, or"
                    + " ORDINAL@STREAM/LANES", error);
        }
    }

    private static long ordinal(String text) {
        long ordinal = Long.parseLong(text);
        if (ordinal < 0) {
            throw new IllegalArgumentException("ordinals begin at 0");
        }
        return ordinal;
    }

    /** The place behind the record that is here. */
    Position next() {
        return new Position(ordinal + 1, stream, lanes);
    }

    /** What follows the ordinals of a stream. */
    static String suffix(String stream, int lanes) {
        return "@" + stream + "/" + lanes;
    }

    @Override
    public String toString() {
        return stream == null ? String.valueOf(ordinal) : ordinal + suffix(stream, lanes);
    }
}
