package io.kera.client;

/** Numbers of control calls, as {@code CallMethod} of data.proto has them. */
final class Methods {
    static final int GET_STREAM = 1;
    static final int LIST_STREAMS = 2;
    static final int CREATE_STREAM = 3;
    static final int ALTER_STREAM = 4;
    static final int DELETE_STREAM = 5;
    static final int FIND_ORDINALS = 6;
    static final int FIND_COPIES = 7;
    static final int INIT_PRODUCER = 8;
    static final int FIND_COORDINATOR = 9;
    static final int JOIN = 10;
    static final int HEARTBEAT = 11;
    static final int ACQUIRE = 12;
    static final int COMMIT = 13;
    static final int LEAVE = 14;
    static final int LIST_GROUPS = 15;
    static final int DESCRIBE_GROUP = 16;
    static final int RESET_GROUP = 17;
    static final int DELETE_GROUP = 18;
    static final int GET_GENERATIONS = 22;
    static final int CUT_LANE = 23;
    static final int WATCH_LANES = 24;
    static final int COMMIT_POSITIONS = 25;
    static final int INIT_TRANSACTIONS = 27;
    static final int ADD_TO_TRANSACTION = 28;
    static final int PREPARE_TRANSACTION = 29;
    static final int END_TRANSACTION = 30;
    static final int FORGET_TRANSACTION = 31;
    static final int LIST_OPEN_TRANSACTIONS = 32;
    static final int SEND_POSITIONS = 33;
    static final int HEARTBEAT_TRANSACTION = 35;
    static final int ABORT_TRANSACTIONS = 36;
    static final int CREATE_PIN = 37;
    static final int LIST_PINS = 38;
    static final int DELETE_PIN = 39;

    private Methods() {}

    /** True if it is not the same to call it twice. */
    static boolean changes(int method) {
        return method == CREATE_STREAM || method == ALTER_STREAM || method == DELETE_STREAM || method == DELETE_PIN;
    }
}
