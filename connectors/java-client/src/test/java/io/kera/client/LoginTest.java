package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Users with passwords, against a broker that asks for them. */
@Timeout(120)
class LoginTest {
    private static final String PASSWORD = "long, secret = 1";
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    @TempDir
    private static Path home;

    private static TestBroker broker;
    private static Path admins;

    @BeforeAll
    static void start() throws Exception {
        broker = TestBroker.withUsers(PASSWORD, "ann", "admin");
        admins = home.resolve("admin");
        Files.writeString(admins, PASSWORD);
    }

    @AfterAll
    static void stop() throws Exception {
        if (broker != null) {
            broker.close();
        }
    }

    private static ConnectOptions as(String user, String password) {
        return ConnectOptions.DEFAULT.withLogin(Login.of(user, password));
    }

    private static Admin admin(ConnectOptions options) {
        return new Admin(List.of(broker.address()), options);
    }

    /** Makes, deletes or changes a user, as one who may. */
    private static void users(String input, String... words) throws Exception {
        List<String> command = new ArrayList<>(List.of(words));
        command.addAll(List.of("--user", "admin", "--user-password-file", admins.toString()));
        broker.run(input, command.toArray(new String[0]));
    }

    private static void append(Producer producer, String value) throws IOException {
        producer.append(null, value.getBytes(StandardCharsets.UTF_8));
        producer.flush();
    }

    /** Writes a record, and reads it in each way there is. */
    private static void useAll(ConnectOptions options, String stream) throws IOException {
        try (Admin admin = admin(options)) {
            StreamInfo info = admin.createStream(stream, 1, 1);
            try (Producer producer = new Producer(stream, ProducerOptions.to(broker.address()).withConnect(options))) {
                append(producer, "one");
            }
            try (LaneReader reader = new LaneReader(info, 0, 0, 0, 1, options)) {
                assertEquals(1, reader.read(1 << 20, 5_000).size());
            }
            try (LaneCutter cutter = new LaneCutter(admin, options)) {
                assertEquals(new LaneCutter.Range(0, 1), cutter.cut(stream, 0, 0, 0, 1));
            }
            try (Consumer consumer = new Consumer(stream, stream, ConsumerOptions.to(broker.address()).withConnect(options))) {
                ConsumedBatch batch = consumer.next(PATIENCE);
                assertNotNull(batch);
                consumer.commit(batch);
            }
            admin.commitPositions("engine-" + stream, stream, List.of(new LanePosition(0, 0, 1)));
            admin.deleteStream(stream);
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "OAUTHBEARER")
    void everythingLogsInByEachMechanism(SaslMechanism mechanism) throws Exception {
        Login login = Login.of("ann", PASSWORD).withMechanism(mechanism);
        useAll(ConnectOptions.DEFAULT.withLogin(login), "by-" + mechanism.number);
    }

    @Test
    void aWrongPasswordIsSaidOnce() throws Exception {
        try (LossyProxy first = new LossyProxy(); LossyProxy second = new LossyProxy()) {
            first.passTo(broker.address());
            second.passTo(broker.address());
            String[] bootstrap = {first.address(), second.address()};
            List<String> told = new ArrayList<>();
            for (ConnectOptions options : List.of(as("ann", "guessed"), as("nobody", PASSWORD))) {
                try (Admin admin = new Admin(List.of(bootstrap), options)) {
                    told.add(assertThrows(LoginException.class, () -> admin.createStream("never", 1, 1)).getMessage());
                }
                told.add(assertThrows(LoginException.class,
                        () -> new Producer("never", ProducerOptions.to(bootstrap).withConnect(options))).getMessage());
                told.add(assertThrows(LoginException.class,
                        () -> new Consumer("never", "g", ConsumerOptions.to(bootstrap).withConnect(options))).getMessage());
            }
            assertEquals(6, first.accepted(), "one attempt each");
            assertEquals(0, second.accepted(), "all brokers have the same users");
            for (String message : told) {
                assertTrue(message.endsWith("the user or the password is wrong"), message);
                assertFalse(message.contains("guessed") || message.contains(PASSWORD), message);
            }
        }
    }

    @Test
    void whoAsksAndWhoDoesNotIsSaid() throws Exception {
        try (Admin admin = admin(ConnectOptions.DEFAULT)) {
            // It was not done, though the request was sent.
            LoginException asked = assertThrows(LoginException.class, () -> admin.createStream("nobodys", 1, 1));
            assertTrue(asked.getMessage().contains("asks its clients who they are"), asked.getMessage());
            assertThrows(LoginException.class, () -> new Producer("s", ProducerOptions.to(broker.address())));
        }
        CompletableFuture<IOException> lost = new CompletableFuture<>();
        FrameLink link = new FrameLink(broker.address(), ConnectOptions.DEFAULT, "test");
        link.call(Methods.GET_STREAM, Admin.named("s"), 10_000, new FrameLink.Waiter() {
            @Override
            public void answered(FrameChannel.Frame frame) {
                lost.complete(null);
            }

            @Override
            public void lost(IOException why) {
                lost.complete(why);
            }
        });
        assertInstanceOf(LoginException.class, lost.get());
        link.close();
        assertFalse(AppendReply.lost(lost.get()).isUncertain(), "nothing was taken");
        assertTrue(AppendReply.lost(new IOException("cut")).isUncertain());
        try (TestBroker open = TestBroker.start(); Admin admin = new Admin(List.of(open.address()), as("ann", PASSWORD))) {
            LoginException none = assertThrows(LoginException.class, () -> admin.stream("s"));
            assertTrue(none.getMessage().contains("takes no password at this address"), none.getMessage());
        }
        try (Admin admin = admin(ConnectOptions.DEFAULT.withLogin(Login.of("ann", PASSWORD)).withTls(tls()))) {
            IOException plain = assertThrows(IOException.class, () -> admin.stream("s"));
            assertFalse(plain instanceof LoginException, plain.toString());
        }
    }

    @Test
    void whoIsBusyIsAskedAgain() throws Exception {
        String busy = "authentication failed: the broker checks too many passwords; try again later";
        String full = "the broker takes no more connections now: it has 4, see server.max_connections";
        ConnectOptions options = ConnectOptions.DEFAULT.withLogin(Login.of("ann", PASSWORD).withMechanism(SaslMechanism.PLAIN));
        try (Busy once = new Busy(busy, full, "")) {
            options.connect(once.address()).close();
            assertEquals(3, once.asked());
        }
        try (Busy always = new Busy(full)) {
            IOException told = assertThrows(IOException.class, () -> options.withTimeoutMillis(500).connect(always.address()));
            assertFalse(told instanceof LoginException, told.toString());
            assertTrue(told.getMessage().startsWith("broker " + always.address() + " cannot be reached: "), told.getMessage());
            assertTrue(told.getMessage().contains("user ann") && told.getMessage().endsWith(full), told.getMessage());
            assertFalse(told.getMessage().contains(PASSWORD), told.getMessage());
        }
        try (Busy never = new Busy("authentication failed: the user or the password is wrong")) {
            assertThrows(LoginException.class, () -> options.connect(never.address()));
            assertEquals(1, never.asked());
        }
    }

    /** Answers each proof with the next of its refusals, and the last one again and again; an empty one lets the user in. */
    private static final class Busy implements AutoCloseable {
        private final ServerSocket listens = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        private final AtomicInteger asked = new AtomicInteger();
        private final Thread answers;

        Busy(String... refusals) throws IOException {
            answers = new Thread(() -> {
                while (!listens.isClosed()) {
                    try (Socket socket = listens.accept()) {
                        DataInputStream in = new DataInputStream(socket.getInputStream());
                        in.skipNBytes(8);
                        in.skipNBytes(Integer.reverseBytes(in.readInt()));
                        String says = refusals[Math.min(asked.getAndIncrement(), refusals.length - 1)];
                        byte[] head = {(byte) (says.isEmpty() ? 0 : 2), 0, 0, 0};
                        socket.getOutputStream().write(Login.message(head, says));
                        // The client ends it.
                        in.read();
                    } catch (IOException error) {
                        // The next one.
                    }
                }
            });
            answers.start();
        }

        String address() {
            return "127.0.0.1:" + listens.getLocalPort();
        }

        int asked() {
            return asked.get();
        }

        @Override
        public void close() throws Exception {
            listens.close();
            answers.join();
        }
    }

    private static javax.net.ssl.SSLContext tls() throws Exception {
        return Tls.trusting(certificates().resolve("ca.pem"));
    }

    private static synchronized Path certificates() throws Exception {
        Path directory = home.resolve("certificates");
        if (!Files.exists(directory)) {
            broker.run("", "certificate", "dev", directory.toString());
        }
        return directory;
    }

    @Test
    void aChangedPasswordCountsForNewConnectionsAndAFileIsReadAgain() throws Exception {
        users("first", "user", "create", "bob");
        Path file = home.resolve("bob");
        Files.writeString(file, "first\n");
        ConnectOptions bob = ConnectOptions.DEFAULT.withLogin(Login.ofFile("bob", file));
        try (Admin admin = admin(bob)) {
            admin.createStream("bobs", 1, 1);
        }
        ProducerOptions options = ProducerOptions.to(broker.address()).withConnect(bob);
        try (Producer producer = new Producer("bobs", options);
                Producer hasty = new Producer("bobs", options.withDeadline(Duration.ofSeconds(1)));
                Consumer consumer = new Consumer(
                        "bobs", "bobs", ConsumerOptions.to(broker.address()).withConnect(bob), TimeUnit.SECONDS.toNanos(1))) {
            append(producer, "one");
            assertEquals(1, consumer.next(PATIENCE).records().size());
            users("second", "user", "create", "bob");
            append(producer, "two");
            broker.kill();
            broker.restart();
            ProduceException refused;
            do {
                refused = assertThrows(ProduceException.class, () -> append(hasty, "three"));
                // A slow machine may not get to log in before the deadline.
            } while (!(refused.getCause() instanceof LoginException));
            assertTrue(refused.getMessage().contains("the user or the password is wrong"), refused.getMessage());
            assertFalse(refused.isUncertain(), refused.getMessage());
            LoginException ended = assertThrows(LoginException.class, () -> {
                while (consumer.next(PATIENCE) != null) {
                    // What came before.
                }
            });
            assertTrue(ended.getMessage().contains("user bob"), ended.getMessage());
            assertThrows(LoginException.class, consumer::close);
            Files.writeString(file, "second\n");
            append(producer, "four");
        }
        try (Admin admin = admin(bob)) {
            assertEquals(3, admin.bounds("bobs").get(0).head(), "what was given up is not stored");
            users("", "user", "delete", "bob", "--yes");
            // An open connection stays.
            assertEquals(3, admin.bounds("bobs").get(0).head());
        }
        try (Admin admin = admin(bob)) {
            assertThrows(LoginException.class, () -> admin.stream("bobs"));
        }
    }

    /** Long before the deadline of its records, and with the reason in place of "there is no such stream". */
    @Test
    void whoMayNotSeeTheStreamAnyMoreIsToldSo(@TempDir Path home) throws Exception {
        Path file = home.resolve("admin");
        Files.writeString(file, PASSWORD + "\n");
        try (TestBroker ruled = TestBroker.withUsers(PASSWORD, List.of(
                "--acl-enabled", "true", "--acl-allow-without-rule", "true", "--acl-super-users", "User:admin"), "ann", "admin");
                Admin admin = new Admin(List.of(ruled.address()), as("admin", PASSWORD))) {
            admin.createStream("secret", 1, 1);
            ProducerOptions options = ProducerOptions.to(ruled.address()).withConnect(as("ann", PASSWORD));
            ConsumerOptions reads = ConsumerOptions.to(ruled.address()).withConnect(as("ann", PASSWORD));
            try (Producer producer = new Producer("secret", options.withDeadline(Duration.ofHours(1)));
                    Consumer consumer = new Consumer("secret", "anns", reads)) {
                producer.append(null, new byte[] {'a'});
                producer.flush();
                assertEquals(1, consumer.next(Duration.ofSeconds(60)).records().size());
                String[] asAdmin = {"--operation", "all", "--stream", "secret", "--user", "admin", "--user-password-file", file.toString()};
                ruled.run("", Stream.concat(Stream.of("acl", "add", "--deny", "User:ann"), Stream.of(asAdmin)).toArray(String[]::new));
                // What is under way when a broker hears of the rule may yet be stored.
                ProduceException refused = assertThrows(ProduceException.class, () -> {
                    while (true) {
                        producer.append(null, new byte[] {'b'});
                        producer.flush();
                    }
                });
                assertTrue(refused.getMessage().contains("ann may not"), refused.getMessage());
                IOException hidden = assertThrows(IOException.class, () -> {
                    while (true) {
                        consumer.next(Duration.ofSeconds(1));
                    }
                });
                assertTrue(hidden.getMessage().contains("ann may not"), hidden.getMessage());
                // The right is back, and so is the producer.
                ruled.run("", Stream.concat(Stream.of("acl", "remove", "--yes"), Stream.of(asAdmin)).toArray(String[]::new));
                boolean isBack = false;
                while (!isBack) {
                    producer.append(null, new byte[] {'c'});
                    try {
                        producer.flush();
                        isBack = true;
                    } catch (ProduceException error) {
                        assertTrue(error.getMessage().contains("ann may not"), error.getMessage());
                    }
                }
            }
        }
    }

    @Test
    void usersLogInOverTls() throws Exception {
        Path files = certificates();
        try (TestBroker secret = TestBroker.withUsers(PASSWORD, List.of(
                "--tls-listeners", "native",
                "--tls-certificate", files.resolve("server.pem").toString(),
                "--tls-key", files.resolve("server-key.pem").toString()), "ann")) {
            for (SaslMechanism mechanism : List.of(
                    SaslMechanism.SCRAM_SHA_512, SaslMechanism.SCRAM_SHA_256, SaslMechanism.PLAIN)) {
                ConnectOptions options = ConnectOptions.DEFAULT.withTls(tls());
                Login right = Login.of("ann", PASSWORD).withMechanism(mechanism);
                try (Admin admin = new Admin(List.of(secret.address()), options.withLogin(right))) {
                    assertEquals(List.of(), admin.streams());
                }
                Login wrong = Login.of("ann", "guessed").withMechanism(mechanism);
                try (Admin admin = new Admin(List.of(secret.address()), options.withLogin(wrong))) {
                    assertThrows(LoginException.class, admin::streams);
                }
            }
            try (Admin admin = new Admin(List.of(secret.address()), as("ann", PASSWORD))) {
                LoginException plain = assertThrows(LoginException.class, admin::streams);
                assertTrue(plain.getMessage().contains("if the broker wants TLS"), plain.getMessage());
            }
        }
    }
}
