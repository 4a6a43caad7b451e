package io.kera.spark;

import io.kera.client.Admin;
import io.kera.client.ConnectOptions;
import io.kera.client.Login;
import io.kera.client.SaslMechanism;
import io.kera.client.Tls;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import javax.net.ssl.SSLContext;

/** Which brokers to begin with, the files of TLS, who to log in as, and the rack of readers. What is null is none. */
record BrokerAccess(
        List<String> bootstrap,
        String ca,
        String certificate,
        String key,
        String user,
        String password,
        String passwordFile,
        String tokenFile,
        SaslMechanism mechanism,
        String rack) implements Serializable {
    private static final long serialVersionUID = 1L;
    private static final int TIMEOUT_MILLIS = 10_000;
    /** In the environment of an executor: the rack that it is in. */
    private static final String RACK = "KERA_RACK";

    /** The files are read here: on the driver, and on each executor. */
    ConnectOptions connect() throws IOException {
        SSLContext tls = null;
        if (ca != null) {
            tls = certificate == null
                    ? Tls.trusting(Path.of(ca))
                    : Tls.withCertificate(Path.of(ca), Path.of(certificate), Path.of(key));
        }
        return new ConnectOptions(TIMEOUT_MILLIS, tls, login());
    }

    private Login login() {
        if (tokenFile != null) {
            return Login.ofTokenFile(Path.of(tokenFile));
        }
        if (user == null) {
            return null;
        }
        Login login = passwordFile == null ? Login.of(user, password) : Login.ofFile(user, Path.of(passwordFile));
        return login.withMechanism(mechanism);
    }

    /** The rack that readers in this process are in; empty: none. */
    String rackHere() {
        return rack != null ? rack : Optional.ofNullable(System.getenv(RACK)).orElse("");
    }

    Admin admin() throws IOException {
        return new Admin(bootstrap, connect());
    }

    /** Without the password. */
    @Override
    public String toString() {
        return String.join(",", bootstrap);
    }
}
