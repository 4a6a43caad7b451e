package io.kera.client;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * Brokers that do not let a running client in. A broker may hear of a user later than others, so it is asked again for a
 * while; after that the client ends with what the broker said. Not thread-safe.
 */
final class LoginRefusals {
    static final long PATIENCE = TimeUnit.SECONDS.toNanos(10);

    private final long patience;
    private final Map<String, Long> since = new HashMap<>();

    LoginRefusals(long patience) {
        this.patience = patience;
    }

    /** A broker answered. */
    void reached(String address) {
        since.remove(address);
    }

    /** A broker was not reached. True if it has refused the login for so long that it is not asked again. */
    boolean areFinal(String address, IOException why, long now) {
        return why instanceof LoginException && now - since.computeIfAbsent(address, any -> now) >= patience;
    }
}
