package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(60)
class ScramTest {
    private static final String NONCE = "rOprNGfwEbeRWgbNEkqO";
    private static final int HEAD = 8;

    private static Scram example() {
        return new Scram(SaslMechanism.SCRAM_SHA_256, "user", "pencil", NONCE);
    }

    /** The text of a vector that has so many bytes before its length. */
    private static String text(String name, int before) throws IOException {
        byte[] vector = Vectors.read().get(name);
        int length = ByteBuffer.wrap(vector).order(ByteOrder.LITTLE_ENDIAN).getInt(before);
        assertEquals(vector.length - before - 4, length, name);
        return new String(vector, before + 4, length, StandardCharsets.UTF_8);
    }

    @Test
    void theExampleOfTheRfcIsPlayedAsTheVectorsHaveIt() throws Exception {
        Map<String, byte[]> vectors = Vectors.read();
        Login login = Login.of("user", "pencil").withMechanism(SaslMechanism.SCRAM_SHA_256);
        Scram exchange = example();
        assertArrayEquals(vectors.get("login-scram-first"), login.firstMessage(exchange.first()));
        String proof = exchange.answer(text("login-scram-challenge", 4), null);
        assertArrayEquals(vectors.get("login-scram-proof"), Login.message(new byte[0], proof));
        exchange.end(text("login-scram-proved", 4));
        Login plain = login.withMechanism(SaslMechanism.PLAIN);
        assertArrayEquals(vectors.get("login-plain"), plain.firstMessage("\0user\0pencil"));
        // What was made of the password is of use for the same challenge only.
        Scram again = example();
        assertEquals(proof, again.answer(text("login-scram-challenge", 4), exchange.salted()));
        assertSame(exchange.salted(), again.salted());
        Scram other = new Scram(SaslMechanism.SCRAM_SHA_256, "user", "pen", NONCE);
        other.answer(text("login-scram-challenge", 4), exchange.salted());
        assertFalse(exchange.salted().equals(other.salted()));
        assertFalse((login + " " + exchange.salted()).contains("pencil"));
    }

    @Test
    void namesAreEscaped() {
        assertEquals("n,,n=a=2Cb=3Dc,r=x", new Scram(SaslMechanism.SCRAM_SHA_512, "a,b=c", "p", "x").first());
    }

    @ParameterizedTest
    @ValueSource(strings = {
            "", "r=", "r=" + NONCE + "x", "s=AAAA,r=" + NONCE + "x,i=4096", "r=" + NONCE + ",s=AAAA,i=4096",
            "r=other,s=AAAA,i=4096", "r=" + NONCE + "x,s=%,i=4096", "r=" + NONCE + "x,s=,i=4096",
            "r=" + NONCE + "x,s=AAAA,i=4095", "r=" + NONCE + "x,s=AAAA,i=16385", "r=" + NONCE + "x,s=AAAA,i=1000000000000",
            "r=" + NONCE + "x,s=AAAA,i=-1"
    })
    void aChallengeThatIsNoneIsNotAnswered(String challenge) {
        assertThrows(Scram.Unproven.class, () -> example().answer(challenge, null));
    }

    @Test
    void aBrokerThatDoesNotKnowThePasswordIsNotBelieved() throws Exception {
        for (String last : List.of("v=AAAA", "v=", "", "e=other-error", "v=%",
                text("login-scram-proved", 4).replace("6rri", "7rri"))) {
            Scram exchange = example();
            exchange.answer(text("login-scram-challenge", 4), null);
            assertThrows(Scram.Unproven.class, () -> exchange.end(last), last);
        }
    }

    /** What comes of a login at a broker that answers so: to the first message, then to each further one. */
    private static IOException loginAt(SaslMechanism mechanism, List<Function<String, byte[]>> answers) throws Exception {
        try (ServerSocket listener = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            Thread broker = new Thread(() -> {
                try (Socket client = listener.accept()) {
                    DataInputStream in = new DataInputStream(client.getInputStream());
                    int before = HEAD;
                    for (Function<String, byte[]> answer : answers) {
                        in.readNBytes(before);
                        before = 0;
                        byte[] message = in.readNBytes(Integer.reverseBytes(in.readInt()));
                        client.getOutputStream().write(answer.apply(new String(message, StandardCharsets.UTF_8)));
                    }
                } catch (IOException error) {
                    // The client is gone.
                }
            });
            broker.start();
            Login login = Login.of("ann", "open sesame").withMechanism(mechanism);
            ConnectOptions options = ConnectOptions.DEFAULT.withLogin(login);
            IOException error = assertThrows(IOException.class, () -> options.connect("127.0.0.1:" + listener.getLocalPort()));
            broker.join();
            assertFalse(error.toString().contains("sesame"), error.toString());
            return error;
        }
    }

    private static byte[] reply(int status, String text) {
        return Login.message(new byte[] {(byte) status, 0, 0, 0}, text);
    }

    private static void isRefused(IOException error, String why) {
        assertTrue(error instanceof LoginException && error.getMessage().contains(why), error.toString());
    }

    @Test
    void whatABrokerAnswersIsTold() throws Exception {
        byte[] wrong = Vectors.read().get("login-refused");
        isRefused(loginAt(SaslMechanism.PLAIN, List.of(first -> wrong)), "the user or the password is wrong");
        isRefused(loginAt(SaslMechanism.SCRAM_SHA_256, List.of(first -> wrong)), "the user or the password is wrong");
        Function<String, byte[]> challenge = first ->
                reply(1, first.substring(first.indexOf("r=")) + "x,s=AAAA,i=4096");
        isRefused(loginAt(SaslMechanism.SCRAM_SHA_512, List.of(challenge, proof -> reply(0, "v=AAAA"))),
                "does not prove that it knows the user");
        // A broker that lets everybody in does not get away with it.
        isRefused(loginAt(SaslMechanism.SCRAM_SHA_512, List.of(first -> reply(0, ""))), "takes no password");
        isRefused(loginAt(SaslMechanism.SCRAM_SHA_512, List.of(challenge, proof -> reply(1, ""))), "takes no password");
        isRefused(loginAt(SaslMechanism.PLAIN, List.of(first -> reply(1, "r=x"))), "takes no password");
        isRefused(loginAt(SaslMechanism.PLAIN, List.of(first -> "HTTP/1.1 400 Bad Request\r\n".getBytes())), "takes no password");
        byte[] long_ = {0, 0, 0, 0, 1, 16, 0, 0};
        isRefused(loginAt(SaslMechanism.PLAIN, List.of(first -> long_)), "takes no password");
        IOException stopped = loginAt(SaslMechanism.PLAIN, List.of(first -> new byte[0]));
        assertFalse(stopped instanceof LoginException, "it may have been stopped: " + stopped);
    }

    @Test
    void secretsAreNotSentToOtherMachinesWithoutTls() throws Exception {
        ConnectOptions plain =
                ConnectOptions.DEFAULT.withLogin(Login.of("ann", "secret").withMechanism(SaslMechanism.PLAIN));
        InetAddress elsewhere = InetAddress.getByAddress(new byte[] {10, 0, 0, 1});
        assertThrows(LoginException.class, () -> plain.checkSecrecy(elsewhere, "10.0.0.1:7600"));
        plain.checkSecrecy(InetAddress.getLoopbackAddress(), "localhost:7600");
        plain.withLogin(Login.of("ann", "secret")).checkSecrecy(elsewhere, "10.0.0.1:7600");
        ConnectOptions token = plain.withLogin(Login.ofTokens(() -> "a.b.c"));
        assertThrows(LoginException.class, () -> token.checkSecrecy(elsewhere, "10.0.0.1:7600"));
        token.checkSecrecy(InetAddress.getLoopbackAddress(), "localhost:7600");
    }

    @Test
    void loginsComeFromTheEnvironmentAndFromFiles(@TempDir Path home) throws Exception {
        assertTrue(Login.from(Map.of()).isEmpty());
        Login login = Login.from(Map.of("KERA_USER", "ann", "KERA_USER_PASSWORD", "x", "KERA_SASL_MECHANISM", "plain")).get();
        assertEquals("user ann by PLAIN", login.toString());
        IllegalArgumentException none =
                assertThrows(IllegalArgumentException.class, () -> Login.from(Map.of("KERA_USER", "ann")));
        assertTrue(none.getMessage().contains("KERA_USER_PASSWORD_FILE"), none.getMessage());
        assertThrows(IllegalArgumentException.class, () -> Login.of("ann", ""));
        assertThrows(IllegalArgumentException.class, () -> Login.of("ann", "x".repeat(1025)));
        assertThrows(IllegalArgumentException.class, () -> Login.of("a\nb", "x"));
        assertThrows(IllegalArgumentException.class, () -> SaslMechanism.named("CRAM"));
        Path file = home.resolve("password");
        Login ofFile = Login.from(Map.of("KERA_USER", "ann", "KERA_USER_PASSWORD_FILE", file.toString())).get();
        IOException missing = assertThrows(IOException.class, () -> ofFile.prove(null, "b:1"));
        assertTrue(missing.getMessage().contains(file.toString()), missing.getMessage());
        Files.write(file, new byte[] {'a', (byte) 0xff});
        IOException binary = assertThrows(IOException.class, () -> ofFile.prove(null, "b:1"));
        assertTrue(binary.getMessage().contains("not UTF-8"), binary.getMessage());
        Files.writeString(file, "\nsecond line");
        IOException empty = assertThrows(IOException.class, () -> ofFile.prove(null, "b:1"));
        assertTrue(empty.getMessage().contains("is no password"), empty.getMessage());
    }

    @Test
    void refusalsAreFinalAfterAWhile() {
        LoginRefusals refusals = new LoginRefusals(10);
        LoginException refused = new LoginException("no");
        assertFalse(refusals.areFinal("a", refused, 0));
        assertFalse(refusals.areFinal("a", refused, 9));
        assertFalse(refusals.areFinal("a", new IOException("gone"), 100), "it was not reached, which is no refusal");
        assertTrue(refusals.areFinal("a", refused, 10));
        assertFalse(refusals.areFinal("b", refused, 10), "another broker");
        refusals.reached("a");
        assertFalse(refusals.areFinal("a", refused, 11));
    }
}
