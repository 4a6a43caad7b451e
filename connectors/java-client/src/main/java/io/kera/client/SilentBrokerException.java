package io.kera.client;

import java.io.IOException;

/** A broker has not answered a read yet. The reader is as good as before: its next read waits for the same answer. */
public final class SilentBrokerException extends IOException {
    private static final long serialVersionUID = 1;

    SilentBrokerException(String message) {
        super(message);
    }
}
