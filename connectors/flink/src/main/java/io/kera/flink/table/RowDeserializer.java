package io.kera.flink.table;

import io.kera.client.KeraRecord;
import io.kera.flink.KeraDeserializer;
import io.kera.flink.LaneSplit;
import io.kera.flink.table.KeraTableFactory.Columns;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.types.RowKind;

/** Rows out of records: columns of the key, of the value, and metadata behind them. */
final class RowDeserializer implements KeraDeserializer<RowData> {
    private static final long serialVersionUID = 1L;
    private final DeserializationSchema<RowData> keys;
    private final DeserializationSchema<RowData> values;
    private final int[] keyColumns;
    private final int[] valueColumns;
    private final RowMetadata[] metadata;
    private final TypeInformation<RowData> type;
    private final boolean isUpsert;
    private final RowData.FieldGetter[] keyGetters;
    private final RowData.FieldGetter[] valueGetters;

    RowDeserializer(
            DeserializationSchema<RowData> keys,
            DeserializationSchema<RowData> values,
            Columns columns,
            RowMetadata[] metadata,
            TypeInformation<RowData> type,
            boolean isUpsert) {
        this.keys = keys;
        this.values = values;
        this.keyColumns = columns.key();
        this.valueColumns = columns.value();
        this.keyGetters = getters(columns.keyType());
        this.valueGetters = getters(columns.valueType());
        this.metadata = metadata;
        this.type = type;
        this.isUpsert = isUpsert;
    }

    @Override
    public void open(DeserializationSchema.InitializationContext context) throws Exception {
        if (keys != null) {
            keys.open(context);
        }
        values.open(context);
    }

    private static RowData.FieldGetter[] getters(DataType row) {
        List<LogicalType> types = row.getLogicalType().getChildren();
        RowData.FieldGetter[] getters = new RowData.FieldGetter[types.size()];
        for (int n = 0; n < getters.length; n++) {
            getters[n] = RowData.createFieldGetter(types.get(n), n);
        }
        return getters;
    }

    @Override
    public void deserialize(KeraRecord record, LaneSplit from, Consumer<RowData> to) throws IOException {
        if (record.value() == null && !isUpsert) {
            // No row: what a deletion means is the business of tables with a primary key.
            return;
        }
        List<RowData> key = new ArrayList<>(1);
        if (keys != null && record.key() != null) {
            keys.deserialize(record.key(), KeraDeserializer.collector(key::add));
        }
        RowData keyRow = key.isEmpty() ? null : key.get(0);
        if (isUpsert && keyRow == null) {
            throw new IOException("record " + record.ordinal() + " of lane " + from.splitId()
                    + " has no key, and a table of upsert-kera needs one; read the stream by a table of kera");
        }
        if (record.value() == null) {
            to.accept(row(RowKind.DELETE, keyRow, null, record, from));
            return;
        }
        values.deserialize(record.value(), KeraDeserializer.collector(value -> {
            RowKind kind = isUpsert ? RowKind.UPDATE_AFTER : value.getRowKind();
            to.accept(row(kind, keyRow, value, record, from));
        }));
    }

    private RowData row(RowKind kind, RowData key, RowData value, KeraRecord record, LaneSplit from) {
        int physical = keyColumns.length + valueColumns.length;
        GenericRowData row = new GenericRowData(kind, physical + metadata.length);
        for (int n = 0; n < keyColumns.length; n++) {
            row.setField(keyColumns[n], key == null ? null : keyGetters[n].getFieldOrNull(key));
        }
        for (int n = 0; n < valueColumns.length; n++) {
            row.setField(valueColumns[n], value == null ? null : valueGetters[n].getFieldOrNull(value));
        }
        for (int n = 0; n < metadata.length; n++) {
            row.setField(physical + n, metadata[n].of(record, from));
        }
        return row;
    }

    @Override
    public TypeInformation<RowData> getProducedType() {
        return type;
    }
}
