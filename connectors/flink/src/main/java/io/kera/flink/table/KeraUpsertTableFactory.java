package io.kera.flink.table;

import io.kera.flink.Order;
import io.kera.flink.table.KeraTableFactory.Columns;
import java.util.Set;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.table.api.ValidationException;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.format.DecodingFormat;
import org.apache.flink.table.connector.format.EncodingFormat;
import org.apache.flink.table.connector.format.Format;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.factories.DeserializationFormatFactory;
import org.apache.flink.table.factories.DynamicTableSinkFactory;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.factories.FactoryUtil.TableFactoryHelper;
import org.apache.flink.table.factories.SerializationFormatFactory;

/**
 * Tables with {@code 'connector' = 'upsert-kera'}: the primary key is the key of records. A record is the newest row of its
 * key, and one without a value deletes the row.
 */
public final class KeraUpsertTableFactory implements DynamicTableSourceFactory, DynamicTableSinkFactory {
    @Override
    public String factoryIdentifier() {
        return "upsert-kera";
    }

    @Override
    public Set<ConfigOption<?>> requiredOptions() {
        return Set.of(KeraTableOptions.STREAM, KeraTableOptions.KEY_FORMAT, KeraTableOptions.VALUE_FORMAT);
    }

    @Override
    public Set<ConfigOption<?>> optionalOptions() {
        // Always from the beginning, and each key in order: otherwise a row could be another one than the newest.
        return Set.of(
                FactoryUtil.SOURCE_PARALLELISM,
                FactoryUtil.SINK_PARALLELISM,
                KeraTableOptions.BOOTSTRAP,
                KeraTableOptions.BOUNDED,
                KeraTableOptions.ORDER,
                KeraTableOptions.KEY_SHARES,
                KeraTableOptions.GROWTH,
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
        DecodingFormat<DeserializationSchema<RowData>> key =
                helper.discoverDecodingFormat(DeserializationFormatFactory.class, KeraTableOptions.KEY_FORMAT);
        DecodingFormat<DeserializationSchema<RowData>> value =
                helper.discoverDecodingFormat(DeserializationFormatFactory.class, KeraTableOptions.VALUE_FORMAT);
        ReadableConfig options = checked(helper);
        KeraTableFactory.checkPin(options);
        return new KeraTableSource(options, columns(context, key, value), key, value, true);
    }

    @Override
    public DynamicTableSink createDynamicTableSink(Context context) {
        TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
        EncodingFormat<SerializationSchema<RowData>> key =
                helper.discoverEncodingFormat(SerializationFormatFactory.class, KeraTableOptions.KEY_FORMAT);
        EncodingFormat<SerializationSchema<RowData>> value =
                helper.discoverEncodingFormat(SerializationFormatFactory.class, KeraTableOptions.VALUE_FORMAT);
        return new KeraTableSink(checked(helper), columns(context, key, value), key, value, true);
    }

    private static ReadableConfig checked(TableFactoryHelper helper) {
        ReadableConfig options = helper.getOptions();
        if (options.getOptional(KeraTableOptions.KEY_FIELDS).isPresent()) {
            throw new ValidationException("the primary key is the key of a table of upsert-kera: leave key.fields out");
        }
        helper.validateExcept(KeraTableFactory.KEY_PREFIX, KeraTableFactory.VALUE_PREFIX);
        if (options.get(KeraTableOptions.STREAM).size() != 1) {
            throw new ValidationException("a table of upsert-kera has one stream");
        }
        if (options.get(KeraTableOptions.ORDER) == Order.NONE) {
            throw new ValidationException(
                    "scan.order = none reads the rows of a key in any order, and the newest could not be told: use lane or key");
        }
        KeraTableFactory.checkConnection(options);
        return options;
    }

    private static Columns columns(Context context, Format key, Format value) {
        if (context.getPrimaryKeyIndexes().length == 0) {
            throw new ValidationException(
                    "a table of upsert-kera needs the columns of its key: add PRIMARY KEY (...) NOT ENFORCED");
        }
        for (Format each : new Format[] {key, value}) {
            if (!each.getChangelogMode().equals(ChangelogMode.insertOnly())) {
                throw new ValidationException("a record of upsert-kera is a row, and its format has changes of rows"
                        + " (" + each.getChangelogMode() + "); use the connector kera for it");
            }
        }
        return Columns.of(context.getPhysicalRowDataType(), context.getPrimaryKeyIndexes());
    }
}
