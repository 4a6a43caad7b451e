package io.kera.client;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.Base64;
import javax.crypto.Mac;
import javax.crypto.SecretKeyFactory;
import javax.crypto.spec.PBEKeySpec;
import javax.crypto.spec.SecretKeySpec;

/**
 * A client's side of SCRAM (RFC 5802 and RFC 7677): it proves to know a password, and the broker that it knows what was
 * made of it; neither tells the other. Without I/O. Names and passwords are taken as their UTF-8 bytes.
 */
final class Scram {
    /** Fewer rounds are guessed too soon; by more a broker could have clients calculate for as long as it likes. */
    private static final int FEWEST_ROUNDS = 4096;
    private static final int MOST_ROUNDS = 16_384;
    private static final int NONCE_BYTES = 24;
    private static final SecureRandom RANDOM = new SecureRandom();

    /** What was made of a password for a salt, some milliseconds long: a later exchange need not. As good as the password. */
    record Salted(String password, byte[] salt, int rounds, byte[] bytes) {
        private boolean isOf(String otherPassword, byte[] otherSalt, int otherRounds) {
            return password.equals(otherPassword) && Arrays.equals(salt, otherSalt) && rounds == otherRounds;
        }

        @Override
        public String toString() {
            return "Salted";
        }
    }

    /** Not what SCRAM has at this place, or not the proof that was due. */
    static final class Unproven extends Exception {
        private static final long serialVersionUID = 1L;

        Unproven(String message) {
            super(message);
        }
    }

    private final SaslMechanism mechanism;
    private final String password;
    private final String nonce;
    private final String bare;
    private Salted salted;
    private byte[] expected;

    Scram(SaslMechanism mechanism, String user, String password) {
        this(mechanism, user, password, newNonce());
    }

    Scram(SaslMechanism mechanism, String user, String password, String nonce) {
        this.mechanism = mechanism;
        this.password = password;
        this.nonce = nonce;
        bare = "n=" + user.replace("=", "=3D").replace(",", "=2C") + ",r=" + nonce;
    }

    private static String newNonce() {
        byte[] bytes = new byte[NONCE_BYTES];
        RANDOM.nextBytes(bytes);
        return Base64.getEncoder().encodeToString(bytes);
    }

    /** The message to send first. */
    String first() {
        return "n,," + bare;
    }

    /**
     * Answers the broker's challenge.
     *
     * @param known what an earlier exchange made of the password; null: nothing
     */
    String answer(String challenge, Salted known) throws Unproven {
        String[] parts = challenge.split(",", -1);
        if (parts.length < 3) {
            throw strange();
        }
        String both = value(parts[0], "r=");
        byte[] salt = decoded(value(parts[1], "s="));
        int rounds = rounds(value(parts[2], "i="));
        if (!both.startsWith(nonce) || both.length() == nonce.length()) {
            throw strange();
        }
        salted = known != null && known.isOf(password, salt, rounds) ? known : salted(salt, rounds);
        byte[] clientKey = mac(salted.bytes(), "Client Key");
        String withoutProof = "c=biws,r=" + both;
        String covered = bare + "," + challenge + "," + withoutProof;
        byte[] proof = mac(hash(clientKey), covered);
        for (int n = 0; n < proof.length; n++) {
            proof[n] ^= clientKey[n];
        }
        expected = mac(mac(salted.bytes(), "Server Key"), covered);
        return withoutProof + ",p=" + Base64.getEncoder().encodeToString(proof);
    }

    /** Takes what proves that the broker knows the password. */
    void end(String last) throws Unproven {
        if (!MessageDigest.isEqual(decoded(value(last, "v=")), expected)) {
            throw new Unproven("the broker does not prove that it knows the user: it is not the one it is taken for");
        }
    }

    /** To be kept for the next exchange, once the broker has proved itself. */
    Salted salted() {
        return salted;
    }

    private static Unproven strange() {
        return new Unproven("the broker's message is no SCRAM message, or not the one that is due");
    }

    private static String value(String attribute, String letter) throws Unproven {
        if (!attribute.startsWith(letter)) {
            throw strange();
        }
        return attribute.substring(letter.length());
    }

    private static byte[] decoded(String text) throws Unproven {
        try {
            return Base64.getDecoder().decode(text);
        } catch (IllegalArgumentException error) {
            throw strange();
        }
    }

    private static int rounds(String text) throws Unproven {
        int rounds;
        try {
            rounds = Integer.parseInt(text);
        } catch (NumberFormatException error) {
            throw strange();
        }
        if (rounds < FEWEST_ROUNDS || rounds > MOST_ROUNDS) {
            throw new Unproven("the broker asks for " + rounds + " rounds of the password's derivation; "
                    + FEWEST_ROUNDS + " to " + MOST_ROUNDS + " are made");
        }
        return rounds;
    }

    private Salted salted(byte[] salt, int rounds) throws Unproven {
        if (salt.length == 0) {
            throw strange();
        }
        PBEKeySpec key = new PBEKeySpec(password.toCharArray(), salt, rounds, hash(new byte[0]).length * 8);
        try {
            byte[] bytes = SecretKeyFactory.getInstance("PBKDF2With" + mechanism.hmac).generateSecret(key).getEncoded();
            return new Salted(password, salt, rounds, bytes);
        } catch (GeneralSecurityException error) {
            throw lacking(error);
        } finally {
            key.clearPassword();
        }
    }

    private byte[] hash(byte[] of) {
        try {
            return MessageDigest.getInstance(mechanism.hash).digest(of);
        } catch (GeneralSecurityException error) {
            throw lacking(error);
        }
    }

    private byte[] mac(byte[] key, String of) {
        try {
            Mac mac = Mac.getInstance(mechanism.hmac);
            mac.init(new SecretKeySpec(key, mechanism.hmac));
            return mac.doFinal(of.getBytes(StandardCharsets.UTF_8));
        } catch (GeneralSecurityException error) {
            throw lacking(error);
        }
    }

    private IllegalStateException lacking(GeneralSecurityException error) {
        return new IllegalStateException("this Java does not have what " + mechanism + " needs: " + error.getMessage(), error);
    }
}
