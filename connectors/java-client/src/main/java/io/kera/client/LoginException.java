package io.kera.client;

import java.io.IOException;

/**
 * A broker does not let the client in: it refuses the user or the password, does not prove itself that it knows the
 * password, takes no logins, or asks for a login where none is given; or there is no token to log in by. Another attempt is of use
 * once the login, or the users of the brokers, are other ones.
 */
public final class LoginException extends IOException {
    private static final long serialVersionUID = 1L;

    LoginException(String message) {
        super(message);
    }

    LoginException(String message, Throwable cause) {
        super(message, cause);
    }
}
