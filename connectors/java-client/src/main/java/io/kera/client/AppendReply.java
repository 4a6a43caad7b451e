package io.kera.client;

import java.io.IOException;
import java.nio.ByteBuffer;

/**
 * A broker's answer to a batch, or that there was none.
 *
 * @param error its number, as docs/errors.md lists them; 0: stored
 * @param placement whether a refused batch may be stored: 0, the error decides; 1, it is not; 2, it may be
 */
record AppendReply(int error, String message, int lane, long baseOrdinal, long appendTime, int placement) {
    static final int NOT_PLACED = 1;
    static final int MAY_BE_PLACED = 2;

    /** What comes next for a refused batch. */
    enum Verdict {
        /** Send it again: it may pass. */
        RETRY,
        /** Batches before it are missing, so it is not stored. */
        GAP,
        /** It was built for an older number of lanes, and is not stored. */
        STALE,
        /** The broker knows nothing of the producer's batches any more. */
        UNKNOWN_PRODUCER,
        /** It will never pass. */
        REFUSED
    }

    /** The connection ended before an answer came. A broker that wants a login has taken nothing. */
    static AppendReply lost(IOException why) {
        int placement = why instanceof LoginException ? NOT_PLACED : MAY_BE_PLACED;
        return new AppendReply(ErrorCodes.TIMEOUT, why.getMessage(), 0, 0, 0, placement);
    }

    static AppendReply read(ByteBuffer header) {
        long[] numbers = new long[8];
        String message = "";
        Wire.Reader fields = new Wire.Reader(header);
        for (int field; (field = fields.next()) != 0; ) {
            if (field == 2) {
                message = fields.text();
            } else if (field < numbers.length) {
                numbers[field] = fields.varint();
            } else {
                fields.skip();
            }
        }
        return new AppendReply((int) numbers[1], message, (int) numbers[3], numbers[4], numbers[5], (int) numbers[7]);
    }

    boolean isStored() {
        return error == 0;
    }

    boolean isUncertain() {
        return placement == 0 ? ErrorCodes.leavesOpen(error) : placement != NOT_PLACED;
    }

    Verdict verdict() {
        return switch (error) {
            case ErrorCodes.SEQUENCE_GAP -> Verdict.GAP;
            case ErrorCodes.STALE_LANES -> Verdict.STALE;
            case ErrorCodes.UNKNOWN_PRODUCER -> Verdict.UNKNOWN_PRODUCER;
            // An owner may hear of a stream, or of its growth, later than this client.
            case ErrorCodes.UNKNOWN_STREAM, ErrorCodes.UNKNOWN_LANE -> Verdict.RETRY;
            default -> ErrorCodes.isRetryable(error) ? Verdict.RETRY : Verdict.REFUSED;
        };
    }

    KeraException asException() {
        return new KeraException(error, message);
    }
}
