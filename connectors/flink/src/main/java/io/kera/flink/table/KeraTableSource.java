package io.kera.flink.table;

import io.kera.flink.KeraSource;
import io.kera.flink.KeraSourceBuilder;
import io.kera.flink.Start;
import io.kera.flink.table.KeraTableFactory.Columns;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.DataStreamSource;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.ProviderContext;
import org.apache.flink.table.connector.format.DecodingFormat;
import org.apache.flink.table.connector.source.DataStreamScanProvider;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.connector.source.abilities.SupportsReadingMetadata;
import org.apache.flink.table.connector.source.abilities.SupportsWatermarkPushDown;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.types.DataType;

/** A table that is read. */
final class KeraTableSource implements ScanTableSource, SupportsReadingMetadata, SupportsWatermarkPushDown {
    private final ReadableConfig options;
    private final Columns columns;
    private final DecodingFormat<DeserializationSchema<RowData>> keyFormat;
    private final DecodingFormat<DeserializationSchema<RowData>> valueFormat;
    /** Records are the newest rows of their keys, and those without a value delete. */
    private final boolean isUpsert;
    private List<String> metadata = List.of();
    private DataType produced;
    private WatermarkStrategy<RowData> watermarks = WatermarkStrategy.noWatermarks();

    KeraTableSource(
            ReadableConfig options,
            Columns columns,
            DecodingFormat<DeserializationSchema<RowData>> keyFormat,
            DecodingFormat<DeserializationSchema<RowData>> valueFormat,
            boolean isUpsert) {
        this.options = options;
        this.columns = columns;
        this.keyFormat = keyFormat;
        this.valueFormat = valueFormat;
        this.isUpsert = isUpsert;
        this.produced = columns.physical();
    }

    @Override
    public ChangelogMode getChangelogMode() {
        return isUpsert ? ChangelogMode.upsert() : valueFormat.getChangelogMode();
    }

    @Override
    public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
        TypeInformation<RowData> type = context.createTypeInformation(produced);
        DeserializationSchema<RowData> keys =
                keyFormat == null ? null : keyFormat.createRuntimeDecoder(context, columns.keyType());
        DeserializationSchema<RowData> values = valueFormat.createRuntimeDecoder(context, columns.valueType());
        RowDeserializer rows = new RowDeserializer(
                keys,
                values,
                columns,
                metadata.stream().map(RowMetadata::named).toArray(RowMetadata[]::new),
                type,
                isUpsert);
        boolean bounded = options.get(KeraTableOptions.BOUNDED) == KeraTableOptions.BoundedMode.LATEST;
        return new DataStreamScanProvider() {
            @Override
            public DataStream<RowData> produceDataStream(ProviderContext provider, StreamExecutionEnvironment env) {
                String name = "kera " + String.join(", ", options.get(KeraTableOptions.STREAM));
                DataStreamSource<RowData> stream = env.fromSource(source(rows, env.getConfiguration()), watermarks, name);
                options.getOptional(FactoryUtil.SOURCE_PARALLELISM).ifPresent(stream::setParallelism);
                provider.generateUid("kera-source").ifPresent(stream::uid);
                return stream;
            }

            @Override
            public boolean isBounded() {
                return bounded;
            }
        };
    }

    private KeraSource<RowData> source(RowDeserializer rows, ReadableConfig job) {
        KeraSourceBuilder<RowData> builder = KeraSource.<RowData>builder()
                .streams(options.get(KeraTableOptions.STREAM).toArray(new String[0]))
                .order(options.get(KeraTableOptions.ORDER))
                .growth(options.get(KeraTableOptions.GROWTH))
                .discovery(options.get(KeraTableOptions.DISCOVERY))
                .start(switch (options.get(KeraTableOptions.STARTUP)) {
                    case EARLIEST -> Start.earliest();
                    case LATEST -> Start.latest();
                    case TIMESTAMP -> Start.timestamp(options.get(KeraTableOptions.STARTUP_TIMESTAMP));
                })
                .deserializer(rows);
        if (options.get(KeraTableOptions.BOUNDED) == KeraTableOptions.BoundedMode.LATEST) {
            builder.bounded();
        }
        if (options.get(KeraTableOptions.ON_DATA_LOSS) == KeraTableOptions.OnDataLoss.EARLIEST) {
            builder.skipDeleted();
        }
        options.getOptional(KeraTableOptions.GROUP).ifPresent(builder::group);
        options.getOptional(KeraTableOptions.KEY_SHARES).ifPresent(builder::keyShares);
        options.getOptional(KeraTableOptions.RACK).ifPresent(builder::rack);
        KeraTableFactory.pinning(options).ifPresent(builder::pin);
        KeraTableFactory.connect(options, builder);
        return builder.build(job);
    }

    @Override
    public Map<String, DataType> listReadableMetadata() {
        Map<String, DataType> all = new LinkedHashMap<>();
        for (RowMetadata each : RowMetadata.values()) {
            all.put(each.column(), each.type());
        }
        return all;
    }

    @Override
    public void applyReadableMetadata(List<String> keys, DataType producedType) {
        metadata = new ArrayList<>(keys);
        produced = producedType;
    }

    @Override
    public void applyWatermark(WatermarkStrategy<RowData> strategy) {
        watermarks = strategy;
    }

    @Override
    public DynamicTableSource copy() {
        KeraTableSource copy = new KeraTableSource(options, columns, keyFormat, valueFormat, isUpsert);
        copy.metadata = metadata;
        copy.produced = produced;
        copy.watermarks = watermarks;
        return copy;
    }

    @Override
    public String asSummaryString() {
        return "Kera";
    }
}
