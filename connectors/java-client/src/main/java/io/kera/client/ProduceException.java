package io.kera.client;

import java.io.IOException;

/** Records were given up. */
public final class ProduceException extends IOException {
    private static final long serialVersionUID = 1L;
    private final boolean uncertain;

    ProduceException(String message, boolean uncertain, Throwable cause) {
        super(message + (uncertain ? "; the records may be stored nevertheless" : "; none of the records is stored"), cause);
        this.uncertain = uncertain;
    }

    /** True if the records may be stored nevertheless. */
    public boolean isUncertain() {
        return uncertain;
    }
}
