package io.kera.client;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** TLS out of PEM files, as the command line takes them. */
public final class Tls {
    private static final Pattern KEY =
            Pattern.compile("-----BEGIN PRIVATE KEY-----([A-Za-z0-9+/=\\s]+)-----END PRIVATE KEY-----");
    private static final char[] NO_PASSWORD = {};

    private Tls() {}

    /**
     * Trusts the authorities in {@code ca} and no others.
     *
     * @throws IOException if the file cannot be read or has no certificate
     */
    public static SSLContext trusting(Path ca) throws IOException {
        return context(ca, null, null);
    }

    /**
     * Trusts the authorities in {@code ca}, and shows brokers a certificate.
     *
     * @param certificate the client's certificate, and those between it and its authority
     * @param key its key in PKCS#8
     * @throws IOException if a file cannot be read, or does not have what it should
     */
    public static SSLContext withCertificate(Path ca, Path certificate, Path key) throws IOException {
        return context(ca, certificate, key);
    }

    private static SSLContext context(Path ca, Path certificate, Path key) throws IOException {
        try {
            KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
            trusted.load(null, null);
            int number = 0;
            for (Certificate authority : certificates(ca)) {
                trusted.setCertificateEntry("authority-" + number++, authority);
            }
            TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(trusted);
            KeyManagerFactory own = null;
            if (certificate != null) {
                KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
                store.load(null, null);
                Certificate[] chain = certificates(certificate).toArray(new Certificate[0]);
                store.setKeyEntry("client", privateKey(key), NO_PASSWORD, chain);
                own = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
                own.init(store, NO_PASSWORD);
            }
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(own == null ? null : own.getKeyManagers(), trust.getTrustManagers(), null);
            return context;
        } catch (GeneralSecurityException error) {
            throw new IOException("TLS cannot be set up from " + ca + ": " + error.getMessage(), error);
        }
    }

    private static List<Certificate> certificates(Path file) throws IOException, GeneralSecurityException {
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        Collection<? extends Certificate> found =
                factory.generateCertificates(new ByteArrayInputStream(Files.readAllBytes(file)));
        if (found.isEmpty()) {
            throw new IOException(file + " has no certificate in PEM");
        }
        return new ArrayList<>(found);
    }

    private static PrivateKey privateKey(Path file) throws IOException, GeneralSecurityException {
        Matcher found = KEY.matcher(Files.readString(file, StandardCharsets.US_ASCII));
        if (!found.find()) {
            throw new IOException(file + " has no PRIVATE KEY in PKCS#8; `openssl pkcs8 -topk8 -nodes` converts others");
        }
        byte[] encoded = Base64.getMimeDecoder().decode(found.group(1));
        GeneralSecurityException refused = null;
        for (String algorithm : List.of("EC", "RSA", "Ed25519")) {
            try {
                return KeyFactory.getInstance(algorithm).generatePrivate(new PKCS8EncodedKeySpec(encoded));
            } catch (GeneralSecurityException error) {
                refused = error;
            }
        }
        throw refused;
    }
}
