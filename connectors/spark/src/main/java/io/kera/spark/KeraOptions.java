package io.kera.spark;

import io.kera.client.Compression;
import io.kera.client.Pin;
import io.kera.client.Pinning;
import io.kera.client.SaslMechanism;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;
import org.apache.spark.network.util.JavaUtils;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What a reader, a writer or a table was given as options. */
final class KeraOptions {
    static final String BOOTSTRAP = "bootstrap";
    static final String STREAM = "stream";
    static final String STARTING_POSITION = "startingPosition";
    static final String STARTING_TIMESTAMP = "startingTimestamp";
    static final String ENDING_POSITION = "endingPosition";
    static final String ENDING_TIMESTAMP = "endingTimestamp";
    static final String MIN_PARTITIONS = "minPartitions";
    static final String MAX_RECORDS = "maxRecordsPerTrigger";
    static final String MAX_BYTES = "maxBytesPerTrigger";
    static final String GROWTH = "growth";
    static final String GROUP = "group";
    static final String FAIL_ON_DATA_LOSS = "failOnDataLoss";
    static final String RACK = "rack";
    static final String PIN = "pin";
    static final String PIN_POLICY = "pinPolicy";
    static final String PIN_MAX_AGE = "pinMaxAge";
    static final String PIN_MAX_BYTES = "pinMaxBytes";
    static final String PIN_REQUIRED = "pinRequired";
    static final String GUARANTEE = "sink.delivery-guarantee";
    static final String ID_PREFIX = "sink.transactional-id-prefix";
    static final String TRANSACTION_TIMEOUT = "sink.transaction-timeout";
    static final String COMPRESSION = "sink.compression";
    static final String LINGER = "sink.linger";
    static final String TLS_CA = "tls.ca";
    static final String TLS_CERTIFICATE = "tls.certificate";
    static final String TLS_KEY = "tls.key";
    static final String USER = "user";
    static final String PASSWORD = "password";
    static final String PASSWORD_FILE = "password-file";
    static final String TOKEN_FILE = "token-file";
    static final String MECHANISM = "sasl.mechanism";

    private static final List<String> KNOWN = List.of(
            BOOTSTRAP, STREAM, STARTING_POSITION, STARTING_TIMESTAMP, ENDING_POSITION, ENDING_TIMESTAMP, MIN_PARTITIONS,
            MAX_RECORDS, MAX_BYTES, GROWTH, GROUP, FAIL_ON_DATA_LOSS, RACK, PIN, PIN_POLICY, PIN_MAX_AGE, PIN_MAX_BYTES, PIN_REQUIRED, GUARANTEE, ID_PREFIX,
            TRANSACTION_TIMEOUT, COMPRESSION, LINGER,
            TLS_CA, TLS_CERTIFICATE, TLS_KEY, USER, PASSWORD, PASSWORD_FILE, TOKEN_FILE, MECHANISM);
    /** Spark gives these to every source and sink. */
    private static final Set<String> SPARKS = Set.of("path", "checkpointlocation", "queryname");
    private static final String CHECKPOINT = "checkpointLocation";
    /** In a checkpoint: what its sink has decided, by query. */
    static final String SINK_FOLDER = "kera-sink";
    private static final int ALIKE = 3;

    private final CaseInsensitiveStringMap given;

    /** @throws IllegalArgumentException if one of them is not known, or they do not fit each other */
    KeraOptions(CaseInsensitiveStringMap given) {
        this.given = given;
        for (String name : given.keySet()) {
            String lower = name.toLowerCase(Locale.ROOT);
            if (!SPARKS.contains(lower) && KNOWN.stream().noneMatch(known -> known.equalsIgnoreCase(lower))) {
                throw new IllegalArgumentException("the option \"" + name + "\" is not known" + hint(lower));
            }
        }
        boolean certificate = has(TLS_CERTIFICATE);
        check(certificate == has(TLS_KEY) && (!certificate || has(TLS_CA)),
                "tls.certificate and tls.key go together, and need tls.ca");
        boolean password = has(PASSWORD);
        boolean file = has(PASSWORD_FILE);
        check(!(password && file) && (password || file) == has(USER),
                "user goes together with one of password and password-file");
        check(!has(TOKEN_FILE) || !(has(USER) || has(MECHANISM)),
                "token-file names who the query is, by OAUTHBEARER: leave user and sasl.mechanism out");
    }

    private static String hint(String name) {
        String nearest = null;
        int least = ALIKE + 1;
        for (String known : KNOWN) {
            int distance = distance(name, known.toLowerCase(Locale.ROOT));
            if (distance < least) {
                least = distance;
                nearest = known;
            }
        }
        return nearest == null ? "; known are " + String.join(", ", KNOWN) : ": did you mean \"" + nearest + "\"?";
    }

    /** How many letters have to be put in, taken out or changed. */
    private static int distance(String a, String b) {
        int[] row = new int[b.length() + 1];
        for (int j = 0; j <= b.length(); j++) {
            row[j] = j;
        }
        for (int i = 1; i <= a.length(); i++) {
            int diagonal = row[0];
            row[0] = i;
            for (int j = 1; j <= b.length(); j++) {
                int changed = diagonal + (a.charAt(i - 1) == b.charAt(j - 1) ? 0 : 1);
                diagonal = row[j];
                row[j] = Math.min(changed, 1 + Math.min(row[j], row[j - 1]));
            }
        }
        return row[b.length()];
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalArgumentException(otherwise);
        }
    }

    private boolean has(String name) {
        return given.containsKey(name);
    }

    private static List<String> words(String text) {
        List<String> words = new ArrayList<>();
        for (String word : text.split(",")) {
            if (!word.isBlank()) {
                words.add(word.strip());
            }
        }
        return words;
    }

    BrokerAccess access() {
        List<String> bootstrap = words(given.getOrDefault(BOOTSTRAP, "127.0.0.1:7600"));
        check(!bootstrap.isEmpty(), "the option bootstrap names no broker: use HOST:PORT, several separated by commas");
        return new BrokerAccess(bootstrap, given.get(TLS_CA), given.get(TLS_CERTIFICATE), given.get(TLS_KEY), given.get(USER),
                given.get(PASSWORD), given.get(PASSWORD_FILE), given.get(TOKEN_FILE),
                SaslMechanism.named(given.getOrDefault(MECHANISM, SaslMechanism.SCRAM_SHA_512.toString())), given.get(RACK));
    }

    /** The streams to read. */
    List<String> streams() {
        List<String> streams = words(given.getOrDefault(STREAM, "")).stream().distinct().toList();
        check(!streams.isEmpty(), "set the option stream: which one to read, several separated by commas");
        return streams;
    }

    Place start() {
        return place(STARTING_POSITION, STARTING_TIMESTAMP, Place.EARLIEST);
    }

    Place end() {
        return place(ENDING_POSITION, ENDING_TIMESTAMP, Place.LATEST);
    }

    private Place place(String position, String timestamp, Place otherwise) {
        check(!has(position) || !has(timestamp), "set one of " + position + " and " + timestamp);
        if (has(timestamp)) {
            return Place.at(number(timestamp, 0, 0));
        }
        String word = given.get(position);
        if (word == null) {
            return otherwise;
        }
        return switch (word.toLowerCase(Locale.ROOT)) {
            case "earliest" -> Place.EARLIEST;
            case "latest" -> Place.LATEST;
            default -> throw new IllegalArgumentException(
                    position + " is \"" + word + "\": use earliest or latest, or set " + timestamp);
        };
    }

    /** 0: one for each lane that has records. */
    int minPartitions() {
        return Math.toIntExact(Math.min(number(MIN_PARTITIONS, 0, 1), 1 << 20));
    }

    /** How many records a micro-batch has at most, about. */
    Optional<Long> maxRecordsPerTrigger() {
        return has(MAX_RECORDS) ? Optional.of(number(MAX_RECORDS, 0, 1)) : Optional.empty();
    }

    /** How many bytes a micro-batch has at most, about. */
    Optional<Long> maxBytesPerTrigger() {
        return has(MAX_BYTES) ? Optional.of(number(MAX_BYTES, 0, 1)) : Optional.empty();
    }

    Growth growth() {
        String word = given.getOrDefault(GROWTH, "ordered");
        return switch (word.toLowerCase(Locale.ROOT)) {
            case "ordered" -> Growth.ORDERED;
            case "unordered" -> Growth.UNORDERED;
            case "refused" -> Growth.REFUSED;
            default -> throw new IllegalArgumentException("growth is \"" + word + "\": use ordered, unordered or refused");
        };
    }

    /** The consumer group that shows where a query stands. */
    Optional<String> group() {
        return Optional.ofNullable(given.get(GROUP));
    }

    /** How what is still to be read is pinned. */
    Optional<Pinning> pinning() {
        String name = given.get(PIN);
        if (name == null) {
            for (String other : List.of(PIN_POLICY, PIN_MAX_AGE, PIN_MAX_BYTES, PIN_REQUIRED)) {
                check(!has(other), other + " is of a pin: name it with the option " + PIN);
            }
            return Optional.empty();
        }
        String policy = given.getOrDefault(PIN_POLICY, "warn").toUpperCase(Locale.ROOT);
        check(policy.equals("WARN") || policy.equals("WAIT"), PIN_POLICY + " is \"" + given.get(PIN_POLICY) + "\": use warn or wait");
        Pinning pinning = Pinning.named(name).policy(Pin.Policy.valueOf(policy));
        pinning = has(PIN_MAX_AGE) ? pinning.maxAge(time(PIN_MAX_AGE, "")) : pinning;
        pinning = has(PIN_MAX_BYTES) ? pinning.maxBytes(number(PIN_MAX_BYTES, 0, 1)) : pinning;
        return Optional.of(given.getBoolean(PIN_REQUIRED, false) ? pinning.required() : pinning);
    }

    /** What makes no sense for a query that goes on is refused where it begins. */
    void checkStream() {
        check(!has(ENDING_POSITION) && !has(ENDING_TIMESTAMP), "a streaming query has no end: leave endingPosition and"
                + " endingTimestamp out, and use Trigger.AvailableNow for what is there now");
        streams();
        start();
        growth();
        minPartitions();
        maxRecordsPerTrigger();
        maxBytesPerTrigger();
        pinning();
    }

    boolean failOnDataLoss() {
        return given.getBoolean(FAIL_ON_DATA_LOSS, true);
    }

    /** How rows of a query are written. What makes no sense is refused before it begins. */
    SinkSettings sink(StructType rows) {
        List<String> streams = streams();
        check(streams.size() == 1, "the option stream names " + streams.size() + " streams: rows are written to one");
        exactlyOnce();
        String compression = given.getOrDefault(COMPRESSION, "none");
        Compression by = Arrays.stream(Compression.values()).filter(each -> each.name().equalsIgnoreCase(compression)).findAny()
                .orElseThrow(() -> new IllegalArgumentException(
                        COMPRESSION + " is \"" + compression + "\": use none, gzip, snappy, lz4 or zstd"));
        return new SinkSettings(access(), streams.get(0), new SinkColumns(streams.get(0), rows), by, time(LINGER, "5ms"),
                time(TRANSACTION_TIMEOUT, "15min"));
    }

    boolean exactlyOnce() {
        String word = given.getOrDefault(GUARANTEE, "at-least-once");
        return switch (word.toLowerCase(Locale.ROOT)) {
            case "at-least-once" -> false;
            case "exactly-once" -> true;
            default -> throw new IllegalArgumentException(GUARANTEE + " is \"" + word + "\": use at-least-once or exactly-once");
        };
    }

    /** What the transactional ids of a query begin with. Those of batches have no query that comes back and could find them. */
    String transactionalIds(String query) {
        check(has(ID_PREFIX) || !query.equals("batch"), GUARANTEE + " = exactly-once needs " + ID_PREFIX
                + " for a batch: what transactional ids begin with, which no other query that runs at the same time has");
        String prefix = given.getOrDefault(ID_PREFIX, "spark");
        check(!prefix.isBlank(), ID_PREFIX + " is empty");
        return prefix + "-" + query + "/";
    }

    /** Where a query's sink keeps what it has decided. */
    String sinkFolder(String query) {
        check(has(CHECKPOINT), GUARANTEE + " = exactly-once keeps a list of transactions in the query's checkpoint, for stream "
                + given.get(STREAM) + ": set the option " + CHECKPOINT + " of the query (the session's setting is not enough)");
        return given.get(CHECKPOINT) + "/" + SINK_FOLDER + "/" + query;
    }

    private Duration time(String name, String otherwise) {
        String text = given.getOrDefault(name, otherwise);
        try {
            long millis = JavaUtils.timeStringAsMs(text.replace(" ", ""));
            check(millis >= 0, name + " is " + text + ": use 0 or more");
            return Duration.ofMillis(millis);
        } catch (NumberFormatException error) {
            throw new IllegalArgumentException(name + " is \"" + text + "\": use a time such as 5ms, 30s or 15min", error);
        }
    }

    private long number(String name, long otherwise, long least) {
        String text = given.get(name);
        if (text == null) {
            return otherwise;
        }
        try {
            long number = Long.parseLong(text.strip());
            check(number >= least, name + " is " + text + ": use " + least + " or more");
            return number;
        } catch (NumberFormatException error) {
            throw new IllegalArgumentException(name + " is \"" + text + "\", which is no number", error);
        }
    }
}
