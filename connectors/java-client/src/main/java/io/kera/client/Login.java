package io.kera.client;

import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.SocketException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;

/**
 * What a client proves by, on each connection, who it is: a user's name and password, by SCRAM-SHA-512 unless another mechanism
 * is chosen, or a token of an issuer. Neither password nor token is in any text that this class makes.
 */
public final class Login {
    private static final int MOST_PASSWORD = 1024;
    private static final int MOST_NAME = 255;
    private static final int MOST_MESSAGE = 4096;
    /** A message with a token has 32,768 bytes at most, of which a few are around the token. */
    static final int MOST_TOKEN = 32_768 - 64;
    private static final byte[] MAGIC = {'K', 'S', 'A', 'S'};
    private static final int VERSION = 1;
    private static final int PROVED = 0;
    private static final int GOES_ON = 1;
    private static final int REFUSED = 2;

    /** In a refusal, by these words: the broker takes the same proof later. */
    private static final String BUSY = "the broker checks too many passwords";
    private static final String FULL = "the broker takes no more connections now";

    private record Reply(int status, String message) {}

    /** A broker that is busy or full takes no proof now, and may take the same one in a moment. */
    static final class Later extends IOException {
        private static final long serialVersionUID = 1L;

        private Later(String message) {
            super(message);
        }
    }

    private final String user;
    /** One of these three is not null. */
    private final String password;
    private final Path file;
    private final TokenProvider tokens;
    private final SaslMechanism mechanism;
    private volatile Scram.Salted salted;

    private Login(String user, String password, Path file, SaslMechanism mechanism) {
        int length = user.getBytes(StandardCharsets.UTF_8).length;
        if (length == 0 || length > MOST_NAME || user.chars().anyMatch(Character::isISOControl)) {
            throw new IllegalArgumentException(
                    "a user's name has 1 to " + MOST_NAME + " bytes and no control characters; this one has " + length + " bytes");
        }
        if (mechanism == SaslMechanism.OAUTHBEARER) {
            throw new IllegalArgumentException("OAUTHBEARER takes a token and no password: use ofTokenFile or ofTokens");
        }
        this.user = user;
        this.password = password;
        this.file = file;
        this.mechanism = Objects.requireNonNull(mechanism);
        tokens = null;
    }

    private Login(TokenProvider tokens) {
        user = "";
        password = null;
        file = null;
        mechanism = SaslMechanism.OAUTHBEARER;
        this.tokens = Objects.requireNonNull(tokens);
    }

    /**
     * A user with a password.
     *
     * @throws IllegalArgumentException if either is empty or too long
     */
    public static Login of(String user, String password) {
        if (!isPassword(password)) {
            throw new IllegalArgumentException("a password has 1 to " + MOST_PASSWORD + " bytes");
        }
        return new Login(user, password, null, SaslMechanism.SCRAM_SHA_512);
    }

    /** A user whose password is the first line of a file. It is read for each connection, and so may change. */
    public static Login ofFile(String user, Path file) {
        return new Login(user, null, Objects.requireNonNull(file), SaslMechanism.SCRAM_SHA_512);
    }

    /**
     * The user whom the token in a file names, by OAUTHBEARER. The file is read for each connection. A broker ends a connection when
     * its token ends: put each new token in the place of the old one before that, by renaming a file. A token is sent as it is, so it
     * takes TLS, or loopback.
     */
    public static Login ofTokenFile(Path file) {
        Objects.requireNonNull(file);
        return new Login(() -> {
            try (InputStream in = Files.newInputStream(file)) {
                return new String(in.readNBytes(MOST_TOKEN + 2), StandardCharsets.UTF_8);
            } catch (IOException error) {
                throw new IOException("the token file " + file + " cannot be read: " + error, error);
            }
        });
    }

    /** The same with tokens that {@code provider} gives, one for each connection. */
    public static Login ofTokens(TokenProvider provider) {
        return new Login(provider);
    }

    /**
     * The login that the command line would use: by the token in KERA_TOKEN_FILE, or of KERA_USER, with KERA_USER_PASSWORD_FILE or
     * KERA_USER_PASSWORD, and KERA_SASL_MECHANISM. Empty without KERA_TOKEN_FILE and KERA_USER.
     *
     * @throws IllegalArgumentException if there is no password, one of them is not valid, or there is a token too
     */
    public static Optional<Login> fromEnvironment() {
        return from(System.getenv());
    }

    static Optional<Login> from(Map<String, String> environment) {
        String user = environment.getOrDefault("KERA_USER", "");
        String token = environment.getOrDefault("KERA_TOKEN_FILE", "");
        if (!token.isEmpty()) {
            if (!user.isEmpty()) {
                throw new IllegalArgumentException("KERA_TOKEN_FILE names who you are, and so does KERA_USER: set one of them");
            }
            return Optional.of(ofTokenFile(Path.of(token)));
        }
        if (user.isEmpty()) {
            return Optional.empty();
        }
        String file = environment.getOrDefault("KERA_USER_PASSWORD_FILE", "");
        String password = environment.getOrDefault("KERA_USER_PASSWORD", "");
        if (file.isEmpty() && password.isEmpty()) {
            throw new IllegalArgumentException("the user " + user
                    + " of KERA_USER has no password: name a file with it (KERA_USER_PASSWORD_FILE), or set KERA_USER_PASSWORD");
        }
        Login login = file.isEmpty() ? of(user, password) : ofFile(user, Path.of(file));
        String mechanism = environment.getOrDefault("KERA_SASL_MECHANISM", "");
        return Optional.of(mechanism.isEmpty() ? login : login.withMechanism(SaslMechanism.named(mechanism)));
    }

    /**
     * The same by another mechanism.
     *
     * @throws IllegalArgumentException if one of both takes a password, and the other one a token
     */
    public Login withMechanism(SaslMechanism other) {
        if (tokens == null) {
            return new Login(user, password, file, other);
        }
        if (other != SaslMechanism.OAUTHBEARER) {
            throw new IllegalArgumentException(other + " takes a password and no token: use of or ofFile");
        }
        return this;
    }

    /** The user's name; empty with a token, which has it. */
    public String user() {
        return user;
    }

    public SaslMechanism mechanism() {
        return mechanism;
    }

    /** Without password and token. */
    @Override
    public String toString() {
        return (tokens == null ? "user " + user : "the holder of this token") + " by " + mechanism;
    }

    private static boolean isPassword(String text) {
        int length = text.getBytes(StandardCharsets.UTF_8).length;
        return length >= 1 && length <= MOST_PASSWORD;
    }

    private String password() throws IOException {
        if (file == null) {
            return password;
        }
        String text;
        try {
            text = Files.readString(file);
        } catch (CharacterCodingException error) {
            throw new IOException("the password file " + file + " is not UTF-8", error);
        } catch (IOException error) {
            throw new IOException("the password file " + file + " of user " + user + " cannot be read: " + error, error);
        }
        String line = text.lines().findFirst().orElse("");
        if (!isPassword(line)) {
            throw new IOException("the first line of " + file + " is no password: one has 1 to " + MOST_PASSWORD + " bytes");
        }
        return line;
    }

    /** @throws LoginException if there is none that a broker could take */
    private String token(String address) throws LoginException {
        String token;
        try {
            token = Objects.requireNonNull(tokens.token(), "what gives tokens gave none").strip();
        } catch (IOException | RuntimeException error) {
            throw new LoginException("there is no token for broker " + address + ": " + error.getMessage(), error);
        }
        if (token.isEmpty() || token.length() > MOST_TOKEN || token.chars().anyMatch(letter -> letter <= ' ' || letter > '~')) {
            // It may be half a token, or another secret: it is not shown.
            throw new LoginException("there is no token for broker " + address + ": " + token.length()
                    + " characters that are none; a token has 1 to " + MOST_TOKEN + " letters, digits and signs");
        }
        return token;
    }

    /**
     * Proves it to the broker at the other end of a channel on which nothing was said.
     *
     * @throws LoginException if the broker refuses, is not believed, or takes no login, or if there is no token
     * @throws Later if the broker takes no proof now
     */
    void prove(Channel channel, String address) throws IOException {
        String secret = tokens == null ? password() : token(address);
        DataInputStream in = new DataInputStream(channel.in());
        OutputStream out = channel.out();
        try {
            if (mechanism == SaslMechanism.PLAIN) {
                send(out, firstMessage("\0" + user + "\0" + secret));
                expect(PROVED, receive(in, address), address);
                return;
            }
            if (tokens != null) {
                send(out, firstMessage("n,,\u0001auth=Bearer " + secret + "\u0001\u0001"));
                expect(PROVED, receive(in, address), address);
                return;
            }
            Scram exchange = new Scram(mechanism, user, secret);
            send(out, firstMessage(exchange.first()));
            String challenge = expect(GOES_ON, receive(in, address), address);
            send(out, message(new byte[0], exchange.answer(challenge, salted)));
            exchange.end(expect(PROVED, receive(in, address), address));
            salted = exchange.salted();
        } catch (EOFException | SocketException error) {
            // It may have been stopped just now.
            throw new IOException("it ended the connection while " + this + " logged in", error);
        } catch (Scram.Unproven error) {
            throw new LoginException("broker " + address + ", " + this + ": " + error.getMessage());
        }
    }

    /** The bytes of the client's first message. */
    byte[] firstMessage(String text) {
        ByteBuffer head = ByteBuffer.allocate(MAGIC.length + 4).order(ByteOrder.LITTLE_ENDIAN);
        head.put(MAGIC).putShort((short) VERSION).putShort((short) mechanism.number);
        return message(head.array(), text);
    }

    /** The bytes of a message, behind the head if it is the first. */
    static byte[] message(byte[] head, String text) {
        byte[] message = text.getBytes(StandardCharsets.UTF_8);
        ByteBuffer whole = ByteBuffer.allocate(head.length + 4 + message.length).order(ByteOrder.LITTLE_ENDIAN);
        return whole.put(head).putInt(message.length).put(message).array();
    }

    private static void send(OutputStream out, byte[] message) throws IOException {
        out.write(message);
        out.flush();
    }

    private static Reply receive(DataInputStream in, String address) throws IOException {
        ByteBuffer head = ByteBuffer.wrap(new byte[8]).order(ByteOrder.LITTLE_ENDIAN);
        in.readFully(head.array(), 0, 4);
        int status = head.getShort();
        if (head.getShort() != 0 || status < PROVED || status > REFUSED) {
            throw takesNone(address);
        }
        in.readFully(head.array(), 4, 4);
        int length = head.getInt();
        if (length < 0 || length > MOST_MESSAGE) {
            throw takesNone(address);
        }
        byte[] message = new byte[length];
        in.readFully(message);
        return new Reply(status, new String(message, StandardCharsets.UTF_8));
    }

    private String expect(int status, Reply reply, String address) throws IOException {
        if (reply.status() == REFUSED) {
            if (reply.message().contains(BUSY) || reply.message().contains(FULL)) {
                throw new Later("it does not let " + this + " log in now: " + reply.message());
            }
            throw new LoginException("broker " + address + " refuses " + this + ": " + reply.message());
        }
        if (reply.status() != status) {
            throw takesNone(address);
        }
        return reply.message();
    }

    /** What came is no answer to a proof. */
    private static LoginException takesNone(String address) {
        return new LoginException("broker " + address + " takes no password at this address, and no token: connect without a login, or have "
                + "the broker's auth.listeners name native; if the broker wants TLS, name the authority that signed its certificate");
    }
}
