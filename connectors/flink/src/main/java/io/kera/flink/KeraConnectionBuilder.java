package io.kera.flink;

import io.kera.client.SaslMechanism;
import io.kera.flink.Connecting.User;
import java.util.List;
import java.util.Objects;

/** Which brokers a source or a sink connects to, and how. */
public abstract sealed class KeraConnectionBuilder<B extends KeraConnectionBuilder<B>>
        permits KeraSourceBuilder, KeraSink.Builder {
    List<String> bootstrap = List.of("127.0.0.1:7600");
    private String ca;
    private String certificate;
    private String key;
    private User user;

    KeraConnectionBuilder() {}

    abstract B self();

    Connecting connection() {
        return new Connecting(Connecting.TIMEOUT_MILLIS, ca, certificate, key, user);
    }

    /** Addresses of brokers to begin with, HOST:PORT. Default 127.0.0.1:7600. */
    public B bootstrap(String... addresses) {
        bootstrap = List.of(addresses);
        return self();
    }

    /**
     * Connects with TLS; the files are on each TaskManager, and for a source on the JobManager. {@code certificate} and
     * {@code key} may be null.
     */
    public B tls(String authorities, String ownCertificate, String ownKey) {
        ca = Objects.requireNonNull(authorities);
        certificate = ownCertificate;
        key = ownKey;
        return self();
    }

    /** Logs in as a user with a password, which becomes part of the job as it is submitted and stored. */
    public B login(String name, String password) {
        user = User.of(name, password);
        return self();
    }

    /**
     * Logs in as a user whose password is the first line of a file on each TaskManager, and for a source on the
     * JobManager. It is read for each connection, and so may change.
     */
    public B loginFromFile(String name, String passwordFile) {
        user = User.ofFile(name, passwordFile);
        return self();
    }

    /**
     * Logs in by a token of an issuer: it is in a file on each TaskManager, and for a source on the JobManager. The file is read for
     * each connection; put the next token into it before the one that is there ends. It takes TLS, or loopback.
     */
    public B loginByTokenFile(String tokenFile) {
        user = User.ofTokenFile(tokenFile);
        return self();
    }

    /**
     * How the user's password is proved. Default SCRAM-SHA-512.
     *
     * @throws IllegalStateException if no user is named yet
     * @throws IllegalArgumentException if it is not proved by a password, or there is a token
     */
    public B mechanism(SaslMechanism wanted) {
        if (user == null) {
            throw new IllegalStateException("name the user first");
        }
        user = user.by(wanted);
        return self();
    }
}
