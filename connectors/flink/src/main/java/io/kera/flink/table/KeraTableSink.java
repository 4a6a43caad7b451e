package io.kera.flink.table;

import io.kera.flink.KeraSerializer;
import io.kera.flink.KeraSink;
import io.kera.flink.table.KeraTableFactory.Columns;
import java.util.List;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.format.EncodingFormat;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.sink.SinkV2Provider;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.LogicalType;

/** A table that is written to. */
final class KeraTableSink implements DynamicTableSink {
    private final ReadableConfig options;
    private final Columns columns;
    private final EncodingFormat<SerializationSchema<RowData>> keyFormat;
    private final EncodingFormat<SerializationSchema<RowData>> valueFormat;

    KeraTableSink(
            ReadableConfig options,
            Columns columns,
            EncodingFormat<SerializationSchema<RowData>> keyFormat,
            EncodingFormat<SerializationSchema<RowData>> valueFormat) {
        this.options = options;
        this.columns = columns;
        this.keyFormat = keyFormat;
        this.valueFormat = valueFormat;
    }

    @Override
    public ChangelogMode getChangelogMode(ChangelogMode requested) {
        return valueFormat.getChangelogMode();
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
                .serializer(new RowSerializer(keys, values, getters(columns.key()), getters(columns.value())));
        KeraTableFactory.connect(options, builder);
        return SinkV2Provider.of(
                builder.build(), options.getOptional(FactoryUtil.SINK_PARALLELISM).orElse(null));
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
    public DynamicTableSink copy() {
        return new KeraTableSink(options, columns, keyFormat, valueFormat);
    }

    @Override
    public String asSummaryString() {
        return "Kera";
    }

    /** Records out of rows. */
    private record RowSerializer(
            SerializationSchema<RowData> keys,
            SerializationSchema<RowData> values,
            RowData.FieldGetter[] keyGetters,
            RowData.FieldGetter[] valueGetters)
            implements KeraSerializer<RowData> {
        private static final long serialVersionUID = 1L;

        @Override
        public void open(SerializationSchema.InitializationContext context) throws Exception {
            if (keys != null) {
                keys.open(context);
            }
            values.open(context);
        }

        @Override
        public byte[] key(RowData row) {
            return keys == null ? null : keys.serialize(projected(row, keyGetters));
        }

        @Override
        public byte[] value(RowData row) {
            return values.serialize(projected(row, valueGetters));
        }

        private static RowData projected(RowData row, RowData.FieldGetter[] getters) {
            GenericRowData projected = new GenericRowData(row.getRowKind(), getters.length);
            for (int n = 0; n < getters.length; n++) {
                projected.setField(n, getters[n].getFieldOrNull(row));
            }
            return projected;
        }
    }
}
