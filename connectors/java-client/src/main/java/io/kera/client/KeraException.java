package io.kera.client;

import java.io.IOException;

/** A broker refused a request, and says why. */
public final class KeraException extends IOException {
    private static final long serialVersionUID = 1L;
    private final int code;

    /**
     * A refusal.
     *
     * @param code as docs/errors.md numbers it
     */
    public KeraException(int code, String message) {
        super(message + " (error " + code + ")");
        this.code = code;
    }

    /** The number of the error, as docs/errors.md lists them. */
    public int code() {
        return code;
    }
}
