package io.kera.client;

/** How a client proves who it is. */
public enum SaslMechanism {
    /** A proof of knowing it, by SHA-512. */
    SCRAM_SHA_512("SCRAM-SHA-512", 2, "SHA-512", "HmacSHA512"),
    /** A proof of knowing it, by SHA-256. */
    SCRAM_SHA_256("SCRAM-SHA-256", 1, "SHA-256", "HmacSHA256"),
    /** The password itself. Only with TLS, or over loopback. */
    PLAIN("PLAIN", 0, null, null),
    /** A token of an issuer: see {@link Login#ofTokens}. Only with TLS, or over loopback. */
    OAUTHBEARER("OAUTHBEARER", 3, null, null);

    private final String name;
    /** Its number in the native protocol. */
    final int number;
    /** The names of SCRAM's hash and of its HMAC in Java. */
    final String hash;
    final String hmac;

    SaslMechanism(String name, int number, String hash, String hmac) {
        this.name = name;
        this.number = number;
        this.hash = hash;
        this.hmac = hmac;
    }

    /**
     * The mechanism of a name in SASL, in any case.
     *
     * @throws IllegalArgumentException if there is none
     */
    public static SaslMechanism named(String name) {
        for (SaslMechanism each : values()) {
            if (each.name.equalsIgnoreCase(name)) {
                return each;
            }
        }
        throw new IllegalArgumentException(
                "\"" + name + "\" is no mechanism: use SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN, or OAUTHBEARER with a token");
    }

    /** Its name in SASL. */
    @Override
    public String toString() {
        return name;
    }
}
