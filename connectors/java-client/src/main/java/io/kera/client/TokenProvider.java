package io.kera.client;

import java.io.IOException;

/**
 * Gives tokens of an issuer, by which a client logs in. It is asked for each connection, by the thread that connects and so by
 * several at once, and may block. A broker ends a connection when its token ends, and the client connects again: whoever keeps a
 * token for later calls renews it before its end.
 */
@FunctionalInterface
public interface TokenProvider {
    /**
     * A token that counts now: a signed JSON web token, without a word like Bearer in front.
     *
     * @throws IOException if there is none; its message is part of what the client reports
     */
    String token() throws IOException;
}
