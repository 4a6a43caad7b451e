package io.kera.spark;

import java.io.Serializable;

/** Where reading starts or ends, in every lane. */
record Place(Kind kind, long timestamp) implements Serializable {
    static final Place EARLIEST = new Place(Kind.EARLIEST, 0);
    static final Place LATEST = new Place(Kind.LATEST, 0);

    enum Kind {
        /** At the first record that is stored. */
        EARLIEST,
        /** Behind the last record that can be read now. */
        LATEST,
        /** At the first record at or after a time. */
        TIMESTAMP
    }

    /** At the first record at or after a time, milliseconds since 1970. */
    static Place at(long millis) {
        return new Place(Kind.TIMESTAMP, millis);
    }
}
