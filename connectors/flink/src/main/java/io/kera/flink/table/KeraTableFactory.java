package io.kera.flink.table;

import io.kera.client.Pinning;
import io.kera.flink.KeraConnectionBuilder;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.ValidationException;
import org.apache.flink.table.connector.format.DecodingFormat;
import org.apache.flink.table.connector.format.EncodingFormat;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.factories.DeserializationFormatFactory;
import org.apache.flink.table.factories.DynamicTableSinkFactory;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.factories.FactoryUtil.TableFactoryHelper;
import org.apache.flink.table.factories.SerializationFormatFactory;
import org.apache.flink.table.types.DataType;

/** Tables with {@code 'connector' = 'kera'}. */
public final class KeraTableFactory implements DynamicTableSourceFactory, DynamicTableSinkFactory {
    static final String VALUE_PREFIX = "value.";
    static final String KEY_PREFIX = "key.";

    /** Which physical columns are the key, and which the value. */
    record Columns(DataType physical, int[] key, int[] value) {
        DataType keyType() {
            return projected(key);
        }

        DataType valueType() {
            return projected(value);
        }

        private DataType projected(int[] columns) {
            List<String> names = DataType.getFieldNames(physical);
            List<DataType> types = DataType.getFieldDataTypes(physical);
            return DataTypes.ROW(IntStream.of(columns)
                            .mapToObj(column -> DataTypes.FIELD(names.get(column), types.get(column)))
                            .toArray(DataTypes.Field[]::new))
                    .notNull();
        }

        /** The key is the primary key. */
        static Columns of(DataType physical, int[] key) {
            int columns = DataType.getFieldCount(physical);
            int[] value = IntStream.range(0, columns)
                    .filter(column -> IntStream.of(key).noneMatch(each -> each == column))
                    .toArray();
            return new Columns(physical, key, value);
        }

        static Columns of(DataType physical, List<String> keys, boolean hasKeyFormat) {
            if (hasKeyFormat == keys.isEmpty()) {
                throw new ValidationException("key.format and key.fields go together: give both or none");
            }
            List<String> names = DataType.getFieldNames(physical);
            int[] key = keys.stream().mapToInt(name -> {
                if (!names.contains(name)) {
                    throw new ValidationException("key.fields has " + name + ", which is no column");
                }
                return names.indexOf(name);
            }).toArray();
            int[] value = IntStream.range(0, names.size()).filter(n -> !keys.contains(names.get(n))).toArray();
            return new Columns(physical, key, value);
        }
    }

    @Override
    public String factoryIdentifier() {
        return "kera";
    }

    @Override
    public Set<ConfigOption<?>> requiredOptions() {
        return Set.of(KeraTableOptions.STREAM);
    }

    @Override
    public Set<ConfigOption<?>> optionalOptions() {
        return Set.of(
                FactoryUtil.FORMAT,
                FactoryUtil.SOURCE_PARALLELISM,
                FactoryUtil.SINK_PARALLELISM,
                KeraTableOptions.BOOTSTRAP,
                KeraTableOptions.VALUE_FORMAT,
                KeraTableOptions.KEY_FORMAT,
                KeraTableOptions.KEY_FIELDS,
                KeraTableOptions.STARTUP,
                KeraTableOptions.STARTUP_TIMESTAMP,
                KeraTableOptions.BOUNDED,
                KeraTableOptions.ORDER,
                KeraTableOptions.KEY_SHARES,
                KeraTableOptions.GROWTH,
                KeraTableOptions.ON_DATA_LOSS,
                KeraTableOptions.DISCOVERY,
                KeraTableOptions.RACK,
                KeraTableOptions.PIN,
                KeraTableOptions.PIN_POLICY,
                KeraTableOptions.PIN_MAX_AGE,
                KeraTableOptions.PIN_MAX_BYTES,
                KeraTableOptions.PIN_REQUIRED,
                KeraTableOptions.PIN_DELETE_AT_END,
                KeraTableOptions.GROUP,
                KeraTableOptions.GUARANTEE,
                KeraTableOptions.TRANSACTIONAL_ID_PREFIX,
                KeraTableOptions.TRANSACTION_TIMEOUT,
                KeraTableOptions.ABORT_FORMER,
                KeraTableOptions.COMPRESSION,
                KeraTableOptions.LINGER,
                KeraTableOptions.TLS_CA,
                KeraTableOptions.TLS_CERTIFICATE,
                KeraTableOptions.TLS_KEY,
                KeraTableOptions.USER,
                KeraTableOptions.PASSWORD,
                KeraTableOptions.PASSWORD_FILE,
                KeraTableOptions.TOKEN_FILE,
                KeraTableOptions.MECHANISM);
    }

    @Override
    public DynamicTableSource createDynamicTableSource(Context context) {
        TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
        DecodingFormat<DeserializationSchema<RowData>> key = helper.discoverOptionalDecodingFormat(
                        DeserializationFormatFactory.class, KeraTableOptions.KEY_FORMAT)
                .orElse(null);
        DecodingFormat<DeserializationSchema<RowData>> value = helper.discoverOptionalDecodingFormat(
                        DeserializationFormatFactory.class, FactoryUtil.FORMAT)
                .orElseGet(() -> helper.discoverDecodingFormat(
                        DeserializationFormatFactory.class, KeraTableOptions.VALUE_FORMAT));
        helper.validateExcept(KEY_PREFIX, VALUE_PREFIX);
        ReadableConfig options = helper.getOptions();
        if (options.get(KeraTableOptions.STARTUP) == KeraTableOptions.StartupMode.TIMESTAMP
                && options.getOptional(KeraTableOptions.STARTUP_TIMESTAMP).isEmpty()) {
            throw new ValidationException("scan.startup.mode = timestamp needs scan.startup.timestamp-millis");
        }
        checkConnection(options);
        checkPin(options);
        Columns columns =
                Columns.of(context.getPhysicalRowDataType(), options.get(KeraTableOptions.KEY_FIELDS), key != null);
        return new KeraTableSource(options, columns, key, value, false);
    }

    @Override
    public DynamicTableSink createDynamicTableSink(Context context) {
        TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
        EncodingFormat<SerializationSchema<RowData>> key = helper.discoverOptionalEncodingFormat(
                        SerializationFormatFactory.class, KeraTableOptions.KEY_FORMAT)
                .orElse(null);
        EncodingFormat<SerializationSchema<RowData>> value = helper.discoverOptionalEncodingFormat(
                        SerializationFormatFactory.class, FactoryUtil.FORMAT)
                .orElseGet(() -> helper.discoverEncodingFormat(
                        SerializationFormatFactory.class, KeraTableOptions.VALUE_FORMAT));
        helper.validateExcept(KEY_PREFIX, VALUE_PREFIX);
        ReadableConfig options = helper.getOptions();
        if (options.get(KeraTableOptions.STREAM).size() != 1) {
            throw new ValidationException("a table that is written to has one stream");
        }
        checkConnection(options);
        Columns columns =
                Columns.of(context.getPhysicalRowDataType(), options.get(KeraTableOptions.KEY_FIELDS), key != null);
        return new KeraTableSink(options, columns, key, value, false);
    }

    static void checkConnection(ReadableConfig options) {
        boolean certificate = isGiven(options, KeraTableOptions.TLS_CERTIFICATE);
        if (certificate != isGiven(options, KeraTableOptions.TLS_KEY)
                || (certificate && !isGiven(options, KeraTableOptions.TLS_CA))) {
            throw new ValidationException("tls.certificate and tls.key go together, and need tls.ca");
        }
        boolean password = isGiven(options, KeraTableOptions.PASSWORD);
        boolean file = isGiven(options, KeraTableOptions.PASSWORD_FILE);
        if ((password && file) || (password || file) != isGiven(options, KeraTableOptions.USER)) {
            throw new ValidationException("user goes together with one of password and password-file");
        }
        if (isGiven(options, KeraTableOptions.TOKEN_FILE)
                && (isGiven(options, KeraTableOptions.USER) || isGiven(options, KeraTableOptions.MECHANISM))) {
            throw new ValidationException("token-file names who the job is, by OAUTHBEARER: leave user and sasl.mechanism out");
        }
    }

    /** What is said of a pin has one. */
    static void checkPin(ReadableConfig options) {
        if (isGiven(options, KeraTableOptions.PIN)) {
            return;
        }
        for (ConfigOption<?> option : List.of(KeraTableOptions.PIN_POLICY, KeraTableOptions.PIN_MAX_AGE, KeraTableOptions.PIN_MAX_BYTES,
                KeraTableOptions.PIN_REQUIRED, KeraTableOptions.PIN_DELETE_AT_END)) {
            if (isGiven(options, option)) {
                throw new ValidationException(option.key() + " is of a pin: name it with scan.pin");
            }
        }
    }

    /** The pin of a table that is read, if it has one. */
    static Optional<Pinning> pinning(ReadableConfig options) {
        return options.getOptional(KeraTableOptions.PIN).map(name -> {
            Pinning pinning = Pinning.named(name).policy(options.get(KeraTableOptions.PIN_POLICY));
            pinning = options.getOptional(KeraTableOptions.PIN_MAX_AGE).map(pinning::maxAge).orElse(pinning);
            pinning = options.getOptional(KeraTableOptions.PIN_MAX_BYTES).map(MemorySize::getBytes).map(pinning::maxBytes).orElse(pinning);
            pinning = options.get(KeraTableOptions.PIN_REQUIRED) ? pinning.required() : pinning;
            return options.get(KeraTableOptions.PIN_DELETE_AT_END) ? pinning.deletedAtEnd() : pinning;
        });
    }

    private static boolean isGiven(ReadableConfig options, ConfigOption<?> option) {
        return options.getOptional(option).isPresent();
    }

    /** Tells a builder which brokers to connect to, and how. */
    static void connect(ReadableConfig options, KeraConnectionBuilder<?> builder) {
        builder.bootstrap(options.get(KeraTableOptions.BOOTSTRAP).toArray(new String[0]));
        options.getOptional(KeraTableOptions.TLS_CA).ifPresent(ca -> builder.tls(
                ca, options.get(KeraTableOptions.TLS_CERTIFICATE), options.get(KeraTableOptions.TLS_KEY)));
        options.getOptional(KeraTableOptions.USER).ifPresent(user -> {
            options.getOptional(KeraTableOptions.PASSWORD).ifPresentOrElse(
                    password -> builder.login(user, password),
                    () -> builder.loginFromFile(user, options.get(KeraTableOptions.PASSWORD_FILE)));
            builder.mechanism(options.get(KeraTableOptions.MECHANISM));
        });
        options.getOptional(KeraTableOptions.TOKEN_FILE).ifPresent(builder::loginByTokenFile);
    }
}
