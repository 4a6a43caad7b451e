package io.kera.flink.table;

import io.kera.flink.KeraSink;
import io.kera.flink.table.KeraTableFactory.Columns;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.format.EncodingFormat;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.sink.SinkV2Provider;
import org.apache.flink.table.connector.sink.abilities.SupportsWritingMetadata;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.LogicalType;

/** A table that is written to. */
final class KeraTableSink implements DynamicTableSink, SupportsWritingMetadata {
    private final ReadableConfig options;
    private final Columns columns;
    private final EncodingFormat<SerializationSchema<RowData>> keyFormat;
    private final EncodingFormat<SerializationSchema<RowData>> valueFormat;
    /** A row takes the place of the one before with its key, and what is deleted is a record without a value. */
    private final boolean isUpsert;
    private List<String> metadata = List.of();

    KeraTableSink(
            ReadableConfig options,
            Columns columns,
            EncodingFormat<SerializationSchema<RowData>> keyFormat,
            EncodingFormat<SerializationSchema<RowData>> valueFormat,
            boolean isUpsert) {
        this.options = options;
        this.columns = columns;
        this.keyFormat = keyFormat;
        this.valueFormat = valueFormat;
        this.isUpsert = isUpsert;
    }

    @Override
    public ChangelogMode getChangelogMode(ChangelogMode requested) {
        return isUpsert ? ChangelogMode.upsert() : valueFormat.getChangelogMode();
    }

    @Override
    public SinkRuntimeProvider getSinkRuntimeProvider(Context context) {
        SerializationSchema<RowData> keys =
                keyFormat == null ? null : keyFormat.createRuntimeEncoder(context, columns.keyType());
        SerializationSchema<RowData> values = valueFormat.createRuntimeEncoder(context, columns.valueType());
        KeraSink.Builder<RowData> builder = KeraSink.<RowData>builder()
                .stream(options.get(KeraTableOptions.STREAM).get(0))
                .guarantee(options.get(KeraTableOptions.GUARANTEE))
                .compression(options.get(KeraTableOptions.COMPRESSION))
                .linger(options.get(KeraTableOptions.LINGER))
                .serializer(new RowSerializer(
                        keys,
                        values,
                        getters(columns.key()),
                        getters(columns.value()),
                        place(RowMetadata.TIMESTAMP),
                        place(RowMetadata.HEADERS),
                        isUpsert));
        builder.transactionTimeout(options.get(KeraTableOptions.TRANSACTION_TIMEOUT));
        if (options.get(KeraTableOptions.ABORT_FORMER)) {
            builder.abortFormer();
        }
        options.getOptional(KeraTableOptions.TRANSACTIONAL_ID_PREFIX).ifPresent(builder::transactionalIdPrefix);
        KeraTableFactory.connect(options, builder);
        return SinkV2Provider.of(
                builder.build(), options.getOptional(FactoryUtil.SINK_PARALLELISM).orElse(null));
    }

    /** Where a row has it, behind its columns; below 0: nowhere. */
    private int place(RowMetadata of) {
        int index = metadata.indexOf(of.column());
        return index < 0 ? index : DataType.getFieldCount(columns.physical()) + index;
    }

    private RowData.FieldGetter[] getters(int[] of) {
        List<DataType> types = DataType.getFieldDataTypes(columns.physical());
        RowData.FieldGetter[] getters = new RowData.FieldGetter[of.length];
        for (int n = 0; n < of.length; n++) {
            LogicalType type = types.get(of[n]).getLogicalType();
            getters[n] = RowData.createFieldGetter(type, of[n]);
        }
        return getters;
    }

    @Override
    public Map<String, DataType> listWritableMetadata() {
        Map<String, DataType> all = new LinkedHashMap<>();
        for (RowMetadata each : List.of(RowMetadata.TIMESTAMP, RowMetadata.HEADERS)) {
            all.put(each.column(), each.type().nullable());
        }
        return all;
    }

    @Override
    public void applyWritableMetadata(List<String> keys, DataType consumed) {
        metadata = List.copyOf(keys);
    }

    @Override
    public DynamicTableSink copy() {
        KeraTableSink copy = new KeraTableSink(options, columns, keyFormat, valueFormat, isUpsert);
        copy.metadata = metadata;
        return copy;
    }

    @Override
    public String asSummaryString() {
        return "Kera";
    }
}
