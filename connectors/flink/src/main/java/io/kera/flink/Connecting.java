package io.kera.flink;

import io.kera.client.ConnectOptions;
import io.kera.client.Login;
import io.kera.client.SaslMechanism;
import io.kera.client.Tls;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Path;
import javax.net.ssl.SSLContext;

/** Timeout, the files of TLS, and who to log in as. Null files are none, and so is a null user. */
record Connecting(long timeoutMillis, String ca, String certificate, String key, User user) implements Serializable {
    private static final long serialVersionUID = 1L;
    static final long TIMEOUT_MILLIS = 10_000;

    /** A user with a password, or a file that has it, or a file with a token that names the user; the others are null. */
    record User(String name, String password, String passwordFile, String tokenFile, SaslMechanism mechanism)
            implements Serializable {
        private static final long serialVersionUID = 1L;

        static User of(String name, String password) {
            return new User(name, password, null, null, SaslMechanism.SCRAM_SHA_512).checked();
        }

        static User ofFile(String name, String file) {
            return new User(name, null, file, null, SaslMechanism.SCRAM_SHA_512).checked();
        }

        static User ofTokenFile(String file) {
            return new User(null, null, null, file, SaslMechanism.OAUTHBEARER).checked();
        }

        User by(SaslMechanism other) {
            return new User(name, password, passwordFile, tokenFile, other).checked();
        }

        /** What cannot be a login is said where the job is made. */
        private User checked() {
            login();
            return this;
        }

        Login login() {
            if (tokenFile != null) {
                return Login.ofTokenFile(Path.of(tokenFile)).withMechanism(mechanism);
            }
            Login login = passwordFile == null ? Login.of(name, password) : Login.ofFile(name, Path.of(passwordFile));
            return login.withMechanism(mechanism);
        }

        /** Without the password. */
        @Override
        public String toString() {
            return tokenFile == null ? "user " + name + " by " + mechanism : "the token in " + tokenFile;
        }
    }

    ConnectOptions options() throws IOException {
        SSLContext tls = null;
        if (ca != null) {
            tls = certificate == null
                    ? Tls.trusting(Path.of(ca))
                    : Tls.withCertificate(Path.of(ca), Path.of(certificate), Path.of(key));
        }
        return new ConnectOptions(Math.toIntExact(timeoutMillis), tls, user == null ? null : user.login());
    }
}
