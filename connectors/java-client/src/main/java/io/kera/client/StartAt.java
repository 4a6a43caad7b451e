package io.kera.client;

/** Where a group begins in lanes of which it has committed nothing, or goes on once it is reset. */
public final class StartAt {
    /** At the first record that is stored. */
    public static final StartAt EARLIEST = new StartAt(1, 1);
    /** Behind the last record. */
    public static final StartAt LATEST = new StartAt(2, 1);

    private final int field;
    private final long value;

    private StartAt(int field, long value) {
        this.field = field;
        this.value = value;
    }

    /** At the first record at or after a time, milliseconds since 1970. */
    public static StartAt timestamp(long millis) {
        return new StartAt(3, millis);
    }

    /** At an ordinal of each lane, or the nearest that is stored. */
    public static StartAt ordinal(long ordinal) {
        return new StartAt(4, ordinal);
    }

    byte[] encoded() {
        return new Wire.Writer().present(field, value).done();
    }
}
