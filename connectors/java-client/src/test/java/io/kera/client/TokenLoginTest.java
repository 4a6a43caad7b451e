package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Tokens of an issuer, against a broker that asks for them. */
@Timeout(120)
class TokenLoginTest {
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    @TempDir
    private static Path home;

    private static TestIssuer issuer;
    private static TestBroker broker;

    @BeforeAll
    static void start() throws Exception {
        issuer = new TestIssuer(home);
        broker = TestBroker.start(issuer.flags().toArray(new String[0]));
        try (Admin admin = admin(Login.ofTokens(() -> issuer.token("ann", 600)))) {
            issuer.awaitKeys(admin);
        }
    }

    @AfterAll
    static void stop() throws Exception {
        if (broker != null) {
            broker.close();
        }
    }

    private static Admin admin(Login login) {
        return new Admin(List.of(broker.address()), ConnectOptions.DEFAULT.withLogin(login));
    }

    /** Tokens that count some seconds, and how many there were. */
    private static final class Short {
        private final AtomicInteger given = new AtomicInteger();

        ConnectOptions options() {
            return ConnectOptions.DEFAULT.withLogin(Login.ofTokens(() -> {
                given.incrementAndGet();
                return issuer.token("ann", 2);
            }));
        }
    }

    @Test
    void clientsGoOnWithTheNextTokenWhenTheirsEnds() throws Exception {
        Short writes = new Short();
        Short shares = new Short();
        Short reads = new Short();
        try (Admin admin = admin(Login.ofTokens(() -> issuer.token("ann", 600)))) {
            admin.createStream("renewed", 1, 1);
        }
        ProducerOptions producing = ProducerOptions.to(broker.address()).withConnect(writes.options());
        ConsumerOptions consuming = ConsumerOptions.to(broker.address()).withConnect(shares.options());
        try (Producer producer = new Producer("renewed", producing);
                Consumer consumer = new Consumer("renewed", "group", consuming);
                Admin admin = new Admin(List.of(broker.address()), reads.options())) {
            int sent = 0;
            List<String> expected = new ArrayList<>();
            List<String> read = new ArrayList<>();
            int writing = writes.given.get();
            int sharing = shares.given.get();
            int reading = reads.given.get();
            while (writes.given.get() < writing + 2 || shares.given.get() < sharing + 4 || reads.given.get() < reading + 3) {
                String value = String.valueOf(sent++);
                expected.add(value);
                producer.append(null, value.getBytes(StandardCharsets.UTF_8));
                producer.flush();
                ConsumedBatch batch = consumer.next(PATIENCE);
                batch.records().forEach(record -> read.add(new String(record.value(), StandardCharsets.UTF_8)));
                consumer.commit(batch);
                assertEquals(sent, admin.bounds("renewed").get(0).head());
            }
            assertEquals(expected, read);
        }
    }

    @Test
    void aFileIsReadForEachConnection() throws Exception {
        Path file = home.resolve("token");
        try (Admin admin = admin(Login.ofTokenFile(file))) {
            LoginException missing = assertThrows(LoginException.class, () -> admin.createStream("by-file", 1, 1));
            assertTrue(missing.getMessage().contains("there is no token") && missing.getMessage().contains(file.toString()),
                    missing.getMessage());
            for (String wrong : List.of("", " \n", "two words", "secret\u0001auth=x", "s".repeat(Login.MOST_TOKEN + 1))) {
                TestIssuer.replace(file, wrong);
                String told = assertThrows(LoginException.class, () -> admin.createStream("by-file", 1, 1)).getMessage();
                assertTrue(told.contains("characters that are none"), told);
                assertFalse(told.contains("secret") || told.contains("words") || told.contains("sss"), told);
            }
            String over = issuer.token("ann", -10);
            TestIssuer.replace(file, over);
            String told = assertThrows(LoginException.class, () -> admin.createStream("by-file", 1, 1)).getMessage();
            assertTrue(told.contains("refuses the holder of this token by OAUTHBEARER") && told.contains("expired"), told);
            assertFalse(told.contains(over.substring(over.lastIndexOf('.'))), told);
            TestIssuer.replace(file, issuer.token("ann", 600) + "\n");
            admin.createStream("by-file", 1, 1);
            assertEquals(0, admin.bounds("by-file").get(0).head());
        }
    }

    @Test
    void whatGivesNoTokenIsSaid() {
        for (TokenProvider provider : List.<TokenProvider>of(
                () -> {
                    throw new IOException("the issuer is away");
                },
                () -> {
                    throw new IllegalStateException("the issuer is away");
                })) {
            try (Admin admin = admin(Login.ofTokens(provider))) {
                LoginException told = assertThrows(LoginException.class, admin::streams);
                assertTrue(told.getMessage().endsWith("there is no token for broker " + broker.address() + ": the issuer is away"),
                        told.getMessage());
            }
        }
        try (Admin admin = admin(Login.ofTokens(() -> null))) {
            assertTrue(assertThrows(LoginException.class, admin::streams).getMessage().endsWith("gave none"));
        }
        try (Admin admin = admin(Login.of("ann", "secret"))) {
            assertThrows(LoginException.class, admin::streams);
        }
    }

    @Test
    void tokensAndPasswordsAreNotMixed() {
        Login token = Login.from(Map.of("KERA_TOKEN_FILE", "/tokens/ann")).orElseThrow();
        assertEquals(SaslMechanism.OAUTHBEARER, token.mechanism());
        assertEquals("the holder of this token by OAUTHBEARER", token.toString());
        assertThrows(IllegalArgumentException.class, () -> token.withMechanism(SaslMechanism.PLAIN));
        assertThrows(IllegalArgumentException.class,
                () -> Login.of("ann", "secret").withMechanism(SaslMechanism.OAUTHBEARER));
        assertThrows(IllegalArgumentException.class,
                () -> Login.from(Map.of("KERA_TOKEN_FILE", "/tokens/ann", "KERA_USER", "ann")));
    }
}
