package io.kera.flink.table;

import io.kera.client.KeraRecord;
import io.kera.flink.KeraSerializer;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.table.data.ArrayData;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.MapData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.types.RowKind;

/**
 * Records out of rows.
 *
 * @param keys null: records have no key
 * @param timestampAt the field with the record's time; below 0: there is none
 * @param headersAt the field with the record's headers; below 0: there is none
 * @param isUpsert rows that are deleted become records without a value
 */
record RowSerializer(
        SerializationSchema<RowData> keys,
        SerializationSchema<RowData> values,
        RowData.FieldGetter[] keyGetters,
        RowData.FieldGetter[] valueGetters,
        int timestampAt,
        int headersAt,
        boolean isUpsert)
        implements KeraSerializer<RowData> {
    private static final long serialVersionUID = 1L;
    private static final int MILLIS = 3;

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
        if (isUpsert && (row.getRowKind() == RowKind.DELETE || row.getRowKind() == RowKind.UPDATE_BEFORE)) {
            return null;
        }
        return values.serialize(projected(row, valueGetters));
    }

    @Override
    public long timestamp(RowData row, Long timestamp) {
        if (timestampAt < 0 || row.isNullAt(timestampAt)) {
            return KeraSerializer.super.timestamp(row, timestamp);
        }
        return row.getTimestamp(timestampAt, MILLIS).getMillisecond();
    }

    @Override
    public List<KeraRecord.Header> headers(RowData row) {
        if (headersAt < 0 || row.isNullAt(headersAt)) {
            return List.of();
        }
        MapData map = row.getMap(headersAt);
        ArrayData names = map.keyArray();
        ArrayData contents = map.valueArray();
        List<KeraRecord.Header> headers = new ArrayList<>();
        for (int n = 0; n < map.size(); n++) {
            if (!names.isNullAt(n)) {
                byte[] content = contents.isNullAt(n) ? null : contents.getBinary(n);
                headers.add(new KeraRecord.Header(names.getString(n).toString(), content));
            }
        }
        return headers;
    }

    private RowData projected(RowData row, RowData.FieldGetter[] getters) {
        GenericRowData projected = new GenericRowData(isUpsert ? RowKind.INSERT : row.getRowKind(), getters.length);
        for (int n = 0; n < getters.length; n++) {
            projected.setField(n, getters[n].getFieldOrNull(row));
        }
        return projected;
    }
}
