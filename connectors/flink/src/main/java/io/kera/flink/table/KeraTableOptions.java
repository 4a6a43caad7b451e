package io.kera.flink.table;

import io.kera.client.Compression;
import io.kera.client.Pin;
import io.kera.client.SaslMechanism;
import io.kera.flink.Growth;
import io.kera.flink.Order;
import java.time.Duration;
import java.util.List;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.connector.base.DeliveryGuarantee;

/** The options of a table with {@code 'connector' = 'kera'}. */
public final class KeraTableOptions {
    /** Where a table begins to be read. */
    public enum StartupMode {
        EARLIEST,
        LATEST,
        TIMESTAMP
    }

    /** Where a table ends. */
    public enum BoundedMode {
        UNBOUNDED,
        LATEST
    }

    /** What happens if the next record was deleted. */
    public enum OnDataLoss {
        FAIL,
        EARLIEST
    }

    public static final ConfigOption<List<String>> BOOTSTRAP = ConfigOptions.key("bootstrap")
            .stringType().asList().defaultValues("127.0.0.1:7600")
            .withDescription("Addresses of brokers to begin with, HOST:PORT.");
    public static final ConfigOption<List<String>> STREAM = ConfigOptions.key("stream")
            .stringType().asList().noDefaultValue()
            .withDescription("The stream; for reading several, separated by semicolons.");
    public static final ConfigOption<String> VALUE_FORMAT = ConfigOptions.key("value.format")
            .stringType().noDefaultValue()
            .withDescription("The format of values; `format` says the same.");
    public static final ConfigOption<String> KEY_FORMAT = ConfigOptions.key("key.format")
            .stringType().noDefaultValue().withDescription("The format of keys. Without it records have none.");
    public static final ConfigOption<List<String>> KEY_FIELDS = ConfigOptions.key("key.fields")
            .stringType().asList().defaultValues()
            .withDescription("The columns that are the key. They are not part of the value.");
    public static final ConfigOption<StartupMode> STARTUP = ConfigOptions.key("scan.startup.mode")
            .enumType(StartupMode.class).defaultValue(StartupMode.EARLIEST)
            .withDescription("Where a job begins that is not restored.");
    public static final ConfigOption<Long> STARTUP_TIMESTAMP = ConfigOptions.key("scan.startup.timestamp-millis")
            .longType().noDefaultValue().withDescription("For scan.startup.mode = timestamp, since 1970.");
    public static final ConfigOption<BoundedMode> BOUNDED = ConfigOptions.key("scan.bounded.mode")
            .enumType(BoundedMode.class).defaultValue(BoundedMode.UNBOUNDED)
            .withDescription("`latest` ends behind what is stored when the job begins.");
    public static final ConfigOption<Order> ORDER = ConfigOptions.key("scan.order")
            .enumType(Order.class).defaultValue(Order.LANE)
            .withDescription("`none` lets several readers share a lane, `key` its keys.");
    public static final ConfigOption<Integer> KEY_SHARES = ConfigOptions.key("scan.key-shares")
            .intType().noDefaultValue()
            .withDescription("By how many readers the keys of a lane are shared, with scan.order = key. Otherwise as parallelism asks for.");
    public static final ConfigOption<Growth> GROWTH = ConfigOptions.key("scan.growth")
            .enumType(Growth.class).defaultValue(Growth.ORDERED)
            .withDescription("What happens where the stream's lanes grow.");
    public static final ConfigOption<OnDataLoss> ON_DATA_LOSS = ConfigOptions.key("scan.on-data-loss")
            .enumType(OnDataLoss.class).defaultValue(OnDataLoss.FAIL)
            .withDescription("What happens if the next record was deleted.");
    public static final ConfigOption<Duration> DISCOVERY = ConfigOptions.key("scan.discovery-interval")
            .durationType().defaultValue(Duration.ofSeconds(10))
            .withDescription("How often the source looks whether lanes have grown.");
    public static final ConfigOption<String> RACK = ConfigOptions.key("scan.rack")
            .stringType().noDefaultValue()
            .withDescription("The rack that the job runs in: replicas in it are read. Otherwise kera.rack of each TaskManager.");
    public static final ConfigOption<String> PIN = ConfigOptions.key("scan.pin")
            .stringType().noDefaultValue()
            .withDescription("The name of the pin of what a completed checkpoint needs; each source of each job has one of its own.");
    public static final ConfigOption<Pin.Policy> PIN_POLICY = ConfigOptions.key("scan.pin.policy")
            .enumType(Pin.Policy.class).defaultValue(Pin.Policy.WARN)
            .withDescription("`wait`: retention keeps what the pin needs, within its bounds. `warn`: brokers tell of what they delete.");
    public static final ConfigOption<Duration> PIN_MAX_AGE = ConfigOptions.key("scan.pin.max-age")
            .durationType().noDefaultValue()
            .withDescription("So long after the last checkpoint the pin holds nothing back any more. Otherwise the brokers' bound, 7 d.");
    public static final ConfigOption<MemorySize> PIN_MAX_BYTES = ConfigOptions.key("scan.pin.max-bytes")
            .memoryType().noDefaultValue()
            .withDescription("The pin holds nothing back once that would be more of a stream. Otherwise the brokers' bound, 10 GiB.");
    public static final ConfigOption<Boolean> PIN_REQUIRED = ConfigOptions.key("scan.pin.required")
            .booleanType().defaultValue(false)
            .withDescription("Whether the job fails where the pin cannot be set, or records are gone that the checkpoint needs.");
    public static final ConfigOption<Boolean> PIN_DELETE_AT_END = ConfigOptions.key("scan.pin.delete-at-end")
            .booleanType().defaultValue(false)
            .withDescription("Whether the pin is deleted once a bounded table is read.");
    public static final ConfigOption<String> GROUP = ConfigOptions.key("group")
            .stringType().noDefaultValue().withDescription("The consumer group that shows where the job stands.");
    public static final ConfigOption<DeliveryGuarantee> GUARANTEE = ConfigOptions.key("sink.delivery-guarantee")
            .enumType(DeliveryGuarantee.class).defaultValue(DeliveryGuarantee.AT_LEAST_ONCE)
            .withDescription("`exactly-once` needs checkpoints, and sink.transactional-id-prefix.");
    public static final ConfigOption<String> TRANSACTIONAL_ID_PREFIX = ConfigOptions.key("sink.transactional-id-prefix")
            .stringType().noDefaultValue()
            .withDescription("What transactional ids begin with; each exactly-once sink of each job has one of its own.");
    public static final ConfigOption<Duration> TRANSACTION_TIMEOUT = ConfigOptions.key("sink.transaction-timeout")
            .durationType().defaultValue(Duration.ofMinutes(15))
            .withDescription("After which time a transaction is aborted that no checkpoint has prepared.");
    public static final ConfigOption<Boolean> ABORT_FORMER = ConfigOptions.key("sink.abort-former")
            .booleanType().defaultValue(false)
            .withDescription("Whether the job aborts what another one, from whose state it starts, wrote since under its own prefix.");
    public static final ConfigOption<Compression> COMPRESSION = ConfigOptions.key("sink.compression")
            .enumType(Compression.class).defaultValue(Compression.NONE).withDescription("How batches are compressed.");
    public static final ConfigOption<Duration> LINGER = ConfigOptions.key("sink.linger")
            .durationType().defaultValue(Duration.ofMillis(5))
            .withDescription("How long a batch waits for more records.");
    public static final ConfigOption<String> TLS_CA = ConfigOptions.key("tls.ca")
            .stringType().noDefaultValue().withDescription("File of the authorities to trust, in PEM: turns TLS on.");
    public static final ConfigOption<String> TLS_CERTIFICATE = ConfigOptions.key("tls.certificate")
            .stringType().noDefaultValue().withDescription("File of the client's certificate.");
    public static final ConfigOption<String> TLS_KEY = ConfigOptions.key("tls.key")
            .stringType().noDefaultValue().withDescription("File of the certificate's key.");
    public static final ConfigOption<String> USER = ConfigOptions.key("user")
            .stringType().noDefaultValue().withDescription("The user to log in as; with password or password-file.");
    public static final ConfigOption<String> PASSWORD = ConfigOptions.key("password")
            .stringType().noDefaultValue().withDescription("The user's password. It is part of the table's definition.");
    public static final ConfigOption<String> PASSWORD_FILE = ConfigOptions.key("password-file")
            .stringType().noDefaultValue().withDescription("The file whose first line is the user's password.");
    public static final ConfigOption<String> TOKEN_FILE = ConfigOptions.key("token-file")
            .stringType().noDefaultValue()
            .withDescription("The file with a token of an issuer to log in by, in place of a user and a password.");
    public static final ConfigOption<SaslMechanism> MECHANISM = ConfigOptions.key("sasl.mechanism")
            .enumType(SaslMechanism.class).defaultValue(SaslMechanism.SCRAM_SHA_512)
            .withDescription("How the password is proved; PLAIN only with TLS, or over loopback.");

    private KeraTableOptions() {}
}
