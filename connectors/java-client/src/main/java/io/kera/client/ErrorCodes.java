package io.kera.client;

import java.util.Set;

/** The error codes of docs/errors.md that a client acts on. */
public final class ErrorCodes {
    public static final int UNKNOWN_STREAM = 1;
    public static final int UNKNOWN_STREAMLET = 2;
    public static final int UNKNOWN_LANE = 3;
    public static final int STREAM_EXISTS = 4;
    public static final int INVALID_ARGUMENT = 6;
    public static final int BATCH_TOO_LARGE = 9;
    public static final int SEQUENCE_GAP = 13;
    public static final int FENCED_PRODUCER = 14;
    public static final int UNKNOWN_PRODUCER = 15;
    public static final int STALE_LANES = 16;
    public static final int NOT_OWNER = 17;
    public static final int TIMEOUT = 21;
    public static final int SHUTTING_DOWN = 22;
    public static final int OUT_OF_RANGE = 23;
    public static final int UNKNOWN_CONSUMER_GROUP = 25;
    public static final int UNKNOWN_MEMBER = 26;
    public static final int STALE_LEASE = 27;
    public static final int COORDINATOR_LOADING = 28;
    public static final int GROUP_NOT_EMPTY = 30;
    public static final int NOT_ENOUGH_COPIES = 34;
    public static final int NOT_COORDINATOR = 35;
    public static final int NOT_AUTHORIZED = 36;
    public static final int UNKNOWN_TRANSACTION = 38;
    public static final int TRANSACTION_NOT_OPEN = 39;
    public static final int TRANSACTION_PENDING = 40;
    public static final int TRANSACTION_PREPARED = 41;
    public static final int TRANSACTION_ABORTABLE = 42;

    private static final int NEWEST = 42;
    private static final Set<Integer> RETRYABLE = Set.of(
            STALE_LANES, NOT_OWNER, 18, 19, 20, TIMEOUT, SHUTTING_DOWN, COORDINATOR_LOADING, 32, NOT_ENOUGH_COPIES,
            NOT_COORDINATOR, TRANSACTION_PENDING);
    private static final Set<Integer> OPEN = Set.of(10, 11, 12, NOT_OWNER, 19, 20, TIMEOUT, SHUTTING_DOWN, 33, NOT_ENOUGH_COPIES);

    private ErrorCodes() {}

    /** True if the same request may succeed later. */
    public static boolean isRetryable(int code) {
        return RETRYABLE.contains(code);
    }

    /** True if a batch that is answered so may be stored all the same. */
    static boolean leavesOpen(int code) {
        return OPEN.contains(code) || code > NEWEST;
    }

    /** True if a call that is answered so may have been done all the same. */
    static boolean mayBeDone(int code) {
        return code == SHUTTING_DOWN || code == TIMEOUT;
    }

    /** True if the streamlet may have another owner by now, or soon. */
    static boolean asksForOwner(int code) {
        return code == NOT_OWNER || code == NOT_ENOUGH_COPIES || code == SHUTTING_DOWN || code == UNKNOWN_STREAM;
    }
}
