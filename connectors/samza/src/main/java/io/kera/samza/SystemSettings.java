package io.kera.samza;

import io.kera.client.Admin;
import io.kera.client.Compression;
import io.kera.client.ConnectOptions;
import io.kera.client.Login;
import io.kera.client.Pin;
import io.kera.client.Pinning;
import io.kera.client.ProducerOptions;
import io.kera.client.SaslMechanism;
import io.kera.client.Tls;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import javax.net.ssl.SSLContext;
import org.apache.samza.config.Config;
import org.apache.samza.config.ConfigException;
import org.apache.samza.config.StorageConfig;
import org.apache.samza.system.SystemStream;

/** What a job says of a system: {@code systems.NAME.kera.*}. */
final class SystemSettings {
    static final String BOOTSTRAP = "bootstrap";
    static final String GROWTH = "growth";
    static final String ON_DATA_LOSS = "on-data-loss";
    static final String RACK = "rack";
    static final String PIN = "pin";
    static final String PIN_POLICY = "pin.policy";
    static final String PIN_MAX_AGE = "pin.max-age.ms";
    static final String PIN_MAX_BYTES = "pin.max-bytes";
    static final String PIN_REQUIRED = "pin.required";
    static final String READ_AHEAD = "read-ahead.bytes";
    static final String COMPRESSION = "producer.compression";
    static final String LINGER = "producer.linger.ms";
    static final String DEADLINE = "producer.deadline.ms";
    static final String TLS_CA = "tls.ca";
    static final String TLS_CERTIFICATE = "tls.certificate";
    static final String TLS_KEY = "tls.key";
    static final String USER = "user";
    static final String PASSWORD = "password";
    static final String PASSWORD_FILE = "password-file";
    static final String TOKEN_FILE = "token-file";
    static final String MECHANISM = "sasl.mechanism";

    private static final Set<String> KNOWN = Set.of(BOOTSTRAP, GROWTH, ON_DATA_LOSS, RACK, PIN, PIN_POLICY, PIN_MAX_AGE, PIN_MAX_BYTES,
            PIN_REQUIRED, READ_AHEAD, COMPRESSION, LINGER, DEADLINE, TLS_CA, TLS_CERTIFICATE, TLS_KEY, USER, PASSWORD, PASSWORD_FILE, TOKEN_FILE, MECHANISM);
    /** In the environment of a process that Samza's cluster manager starts: its number within the job. */
    private static final String CONTAINER = "SAMZA_CONTAINER_ID";
    /** In the environment of a process: the rack that it is in. */
    private static final String RACK_OF_PROCESS = "KERA_RACK";
    private static final int TIMEOUT_MILLIS = 10_000;
    private static final long MOST_READ_AHEAD = 1L << 30;

    private final String system;
    private final Config config;
    private final String prefix;
    private final Map<String, String> given;

    /** @throws ConfigException if one of them is not known, or they do not fit each other */
    SystemSettings(String system, Config config) {
        this.system = system;
        this.config = config;
        prefix = "systems." + system + ".kera.";
        given = config.subset(prefix, true);
        for (String name : given.keySet()) {
            check(KNOWN.contains(name), "is not known; known are " + String.join(", ", new TreeSet<>(KNOWN)), name);
        }
        boolean certificate = has(TLS_CERTIFICATE);
        check(certificate == has(TLS_KEY) && (!certificate || has(TLS_CA)), "goes together with tls.key, and needs tls.ca",
                TLS_CERTIFICATE);
        check(!(has(PASSWORD) && has(PASSWORD_FILE)) && (has(PASSWORD) || has(PASSWORD_FILE)) == has(USER),
                "goes together with one of password and password-file", USER);
        check(!has(TOKEN_FILE) || !(has(USER) || has(MECHANISM)),
                "names who the job is, by OAUTHBEARER: leave user and sasl.mechanism out", TOKEN_FILE);
        bootstrap();
        isGrowthRefused();
        isLossFatal();
        readAhead();
        pinning("0");
        compression();
        producerOptions(ConnectOptions.DEFAULT);
    }

    private void check(boolean holds, String otherwise, String name) {
        if (!holds) {
            throw new ConfigException(prefix + name + " " + otherwise);
        }
    }

    private boolean has(String name) {
        return given.containsKey(name);
    }

    String system() {
        return system;
    }

    /** How the job is called in messages. */
    String job() {
        return "job " + config.get("job.name", config.get("app.name", "without a name"));
    }

    List<String> bootstrap() {
        List<String> words = Arrays.stream(given.getOrDefault(BOOTSTRAP, "127.0.0.1:7600").split(","))
                .map(String::strip).filter(word -> !word.isEmpty()).toList();
        check(!words.isEmpty(), "names no broker: use HOST:PORT, several separated by commas", BOOTSTRAP);
        return words;
    }

    /** The files are read here. */
    ConnectOptions connect() throws IOException {
        SSLContext tls = null;
        if (has(TLS_CA)) {
            Path ca = Path.of(given.get(TLS_CA));
            tls = has(TLS_CERTIFICATE)
                    ? Tls.withCertificate(ca, Path.of(given.get(TLS_CERTIFICATE)), Path.of(given.get(TLS_KEY)))
                    : Tls.trusting(ca);
        }
        return new ConnectOptions(TIMEOUT_MILLIS, tls, login());
    }

    private Login login() {
        if (has(TOKEN_FILE)) {
            return Login.ofTokenFile(Path.of(given.get(TOKEN_FILE)));
        }
        if (!has(USER)) {
            return null;
        }
        Login login = has(PASSWORD)
                ? Login.of(given.get(USER), given.get(PASSWORD))
                : Login.ofFile(given.get(USER), Path.of(given.get(PASSWORD_FILE)));
        return login.withMechanism(SaslMechanism.named(given.getOrDefault(MECHANISM, SaslMechanism.SCRAM_SHA_512.toString())));
    }

    Admin admin() throws IOException {
        return new Admin(bootstrap(), connect());
    }

    ProducerOptions producerOptions(ConnectOptions connect) {
        Duration linger = Duration.ofMillis(number(LINGER, 5, 0, Integer.MAX_VALUE));
        Duration deadline = Duration.ofMillis(number(DEADLINE, 120_000, 1, Duration.ofDays(1).toMillis()));
        check(linger.compareTo(deadline) < 0, "must be below " + DEADLINE, LINGER);
        return ProducerOptions.to(bootstrap().toArray(String[]::new)).withConnect(connect).withDeadline(deadline).withLinger(linger)
                .withCompression(compression());
    }

    private Compression compression() {
        String word = given.getOrDefault(COMPRESSION, "none");
        return Arrays.stream(Compression.values()).filter(each -> each.name().equalsIgnoreCase(word)).findAny().orElseThrow(
                () -> new ConfigException(prefix + COMPRESSION + " is \"" + word + "\": use none, gzip, snappy, lz4 or zstd"));
    }

    /** True if the job has state, which is kept by lane. */
    boolean isStateful() {
        return !new StorageConfig(config).getStoreNames().isEmpty();
    }

    /**
     * How old a record of a store's stream is before a newer one of its key may take its place. A state that is restored up to a
     * checkpoint needs the values that keys had then, which is what Samza's setting of the store keeps them for.
     */
    Duration compactionLag(String stream) {
        StorageConfig stores = new StorageConfig(config);
        SystemStream wanted = new SystemStream(system, stream);
        long lag = stores.getStoreChangelogs().entrySet().stream().filter(store -> store.getValue().equals(wanted))
                .mapToLong(store -> stores.getChangelogMinCompactionLagMs(store.getKey())).max()
                .orElse(StorageConfig.DEFAULT_CHANGELOG_MIN_COMPACTION_LAG_MS);
        return Duration.ofMillis(lag);
    }

    /** True if the job must not go on once a stream has other lanes than it began with. */
    boolean isGrowthRefused() {
        return isFirst(GROWTH, "refused", "later", isStateful());
    }

    /** True if the job must not go on without records that were deleted before it read them. */
    boolean isLossFatal() {
        return isFirst(ON_DATA_LOSS, "fail", "oldest", true);
    }

    private boolean isFirst(String name, String first, String second, boolean otherwise) {
        String word = given.get(name);
        if (word == null) {
            return otherwise;
        }
        String lower = word.toLowerCase(Locale.ROOT);
        check(lower.equals(first) || lower.equals(second), "is \"" + word + "\": use " + first + " or " + second, name);
        return lower.equals(first);
    }

    /** The rack that this process is in; empty: none. */
    String rack() {
        String own = System.getenv(RACK_OF_PROCESS);
        return given.getOrDefault(RACK, own == null ? "" : own);
    }

    /**
     * How what this process has still to read is pinned: under a name of its own.
     *
     * @throws ConfigException if it is to be, and the process has no number within the job
     */
    Optional<Pinning> pinning() {
        String process = config.get("processor.id", System.getenv(CONTAINER));
        check(!has(PIN) || process != null, "needs a name for each process that it keeps over restarts: set processor.id", PIN);
        return pinning(process);
    }

    private Optional<Pinning> pinning(String process) {
        for (String other : List.of(PIN_POLICY, PIN_MAX_AGE, PIN_MAX_BYTES, PIN_REQUIRED)) {
            check(has(PIN) || !has(other), "is of a pin: name it with " + prefix + PIN, other);
        }
        if (!has(PIN)) {
            return Optional.empty();
        }
        Pin.Policy policy = isFirst(PIN_POLICY, "wait", "warn", false) ? Pin.Policy.WAIT : Pin.Policy.WARN;
        String name = given.get(PIN);
        check(!name.isEmpty() && name.chars().noneMatch(Character::isWhitespace), "is \"" + name + "\": use 1 or more bytes without blanks", PIN);
        Pinning pinning = Pinning.named(name + "-" + process.replaceAll("\\s", "-")).policy(policy);
        long age = number(PIN_MAX_AGE, 0, 1, Long.MAX_VALUE);
        pinning = age == 0 ? pinning : pinning.maxAge(Duration.ofMillis(age));
        long bytes = number(PIN_MAX_BYTES, 0, 1, Long.MAX_VALUE);
        pinning = bytes == 0 ? pinning : pinning.maxBytes(bytes);
        return Optional.of(isFirst(PIN_REQUIRED, "true", "false", false) ? pinning.required() : pinning);
    }

    /** Bytes of records of a lane that wait for the job; no more are read then. */
    long readAhead() {
        return number(READ_AHEAD, 4 << 20, 1, MOST_READ_AHEAD);
    }

    private long number(String name, long otherwise, long least, long most) {
        String text = given.get(name);
        if (text == null) {
            return otherwise;
        }
        try {
            long number = Long.parseLong(text.strip());
            check(number >= least && number <= most, "is " + text + ": use " + least + " to " + most, name);
            return number;
        } catch (NumberFormatException error) {
            throw new ConfigException(prefix + name + " is \"" + text + "\", which is no number", error);
        }
    }
}
