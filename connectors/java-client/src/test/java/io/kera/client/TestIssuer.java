package io.kera.client;

import java.io.IOException;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.GeneralSecurityException;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.Signature;
import java.security.interfaces.ECPublicKey;
import java.security.spec.ECGenParameterSpec;
import java.util.Base64;
import java.util.List;

/** An issuer of tokens, whose public key is in a file. */
public final class TestIssuer {
    private static final String NAME = "https://issuer.example";
    private static final int COORDINATE = 32;
    private static final long PATIENCE_NANOS = 30_000_000_000L;
    private final KeyPair pair;
    private final Path keys;

    /** One whose key set is a file in this directory. */
    public TestIssuer(Path directory) throws IOException, GeneralSecurityException {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("EC");
        generator.initialize(new ECGenParameterSpec("secp256r1"));
        pair = generator.generateKeyPair();
        ECPublicKey open = (ECPublicKey) pair.getPublic();
        keys = directory.resolve("keys.json");
        Files.writeString(keys, String.format(
                "{\"keys\":[{\"kty\":\"EC\",\"crv\":\"P-256\",\"use\":\"sig\",\"kid\":\"one\",\"x\":\"%s\",\"y\":\"%s\"}]}",
                coordinate(open.getW().getAffineX()), coordinate(open.getW().getAffineY())));
    }

    /** What has a broker ask its clients for these tokens. */
    public List<String> flags() {
        return List.of("--auth-listeners", "native", "--auth-mechanisms", "OAUTHBEARER", "--oauth-issuer", NAME,
                "--oauth-audience", "kera", "--oauth-keys", keys.toString(), "--oauth-clock-skew", "0s");
    }

    private static String coordinate(BigInteger number) {
        byte[] bytes = number.toByteArray();
        byte[] fixed = new byte[COORDINATE];
        int length = Math.min(bytes.length, COORDINATE);
        System.arraycopy(bytes, bytes.length - length, fixed, COORDINATE - length, length);
        return base64url(fixed);
    }

    private static String base64url(byte[] bytes) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(bytes);
    }

    /** Waits until the broker takes tokens: it reads the keys in the background. */
    public void awaitKeys(Admin admin) throws IOException {
        long begun = System.nanoTime();
        while (true) {
            try {
                admin.streams();
                return;
            } catch (LoginException notYet) {
                if (System.nanoTime() - begun > PATIENCE_NANOS) {
                    throw notYet;
                }
            }
        }
    }

    /** A token of a user for so many seconds, which may be over. */
    public String token(String user, long life) {
        long now = System.currentTimeMillis() / 1000;
        String head = "{\"alg\":\"ES256\",\"typ\":\"JWT\",\"kid\":\"one\"}";
        String claims = String.format("{\"iss\":\"%s\",\"aud\":\"kera\",\"sub\":\"%s\",\"iat\":%d,\"exp\":%d}",
                NAME, user, now, now + life);
        String signed = base64url(head.getBytes(StandardCharsets.UTF_8)) + "."
                + base64url(claims.getBytes(StandardCharsets.UTF_8));
        try {
            Signature signature = Signature.getInstance("SHA256withECDSAinP1363Format");
            signature.initSign(pair.getPrivate());
            signature.update(signed.getBytes(StandardCharsets.UTF_8));
            return signed + "." + base64url(signature.sign());
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Puts a text into the place of the one that is in a file, at once. */
    public static void replace(Path file, String text) throws IOException {
        Path next = Files.writeString(file.resolveSibling(file.getFileName() + ".new"), text);
        Files.move(next, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
    }
}
