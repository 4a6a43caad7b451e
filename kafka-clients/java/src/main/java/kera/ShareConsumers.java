package kera;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The share consumers that the test opened, by name, and what operators do with their groups. */
final class ShareConsumers {
    private final Map<String, KafkaShareConsumer<byte[], byte[]>> consumers = new HashMap<>();
    private final Map<String, List<String>> failures = new HashMap<>();
    private final Map<String, Admin> admins = new HashMap<>();

    JsonNode handle(String op, JsonNode request) throws Exception {
        String name = request.path("consumer").asText();
        String group = request.path("group").asText();
        switch (op) {
            case "share_consumer":
                return open(name, request);
            case "share_poll":
                return poll(consumers.get(name), request);
            case "share_acknowledge":
                return acknowledge(consumers.get(name), request);
            case "share_commit":
                return commit(name);
            case "close_share_consumer":
                consumers.remove(name).close();
                return nothing();
            case "alter_group_configs":
                return alterConfigs(request, group);
            case "group_configs":
                ConfigResource resource = new ConfigResource(ConfigResource.Type.forId((byte) 32), group);
                ObjectNode configs = nothing();
                admin(request).describeConfigs(List.of(resource)).all().get().get(resource).entries().stream()
                        .filter(each -> each.source() != ConfigEntry.ConfigSource.DEFAULT_CONFIG)
                        .forEach(each -> configs.put(each.name(), each.value()));
                return configs;
            case "share_group":
                return describe(request, group);
            case "share_offsets":
                return offsets(request, group);
            case "set_share_offset":
                TopicPartition at = new TopicPartition(
                        request.get("topic").asText(), request.get("partition").asInt());
                call(request, "alterShareGroupOffsets", "all", new Class<?>[] {String.class, Map.class}, group,
                        Map.of(at, request.get("offset").asLong()));
                return nothing();
            case "delete_share_offsets":
                call(request, "deleteShareGroupOffsets", "all", new Class<?>[] {String.class, Set.class}, group,
                        Set.of(request.get("topic").asText()));
                return nothing();
            case "delete_share_group":
                call(request, "deleteShareGroups", "all", new Class<?>[] {Collection.class}, List.of(group));
                return nothing();
            default:
                return null;
        }
    }

    private JsonNode open(String name, JsonNode request) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", request.get("bootstrap").asText());
        settings.put("client.id", name);
        settings.put("group.id", request.get("group").asText());
        settings.put("share.acknowledgement.mode", request.path("mode").asText("explicit"));
        settings.put("fetch.max.wait.ms", "200");
        settings.put("metadata.max.age.ms", "1000");
        settings.put("default.api.timeout.ms", "30000");
        settings.put("max.poll.records", request.path("max_records").asText("500"));
        KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<String> failed = new ArrayList<>();
        consumer.setAcknowledgementCommitCallback((offsets, failure) -> {
            if (failure != null) {
                failed.add(failure.getClass().getSimpleName());
            }
        });
        List<String> topics = new ArrayList<>();
        request.get("topics").forEach(topic -> topics.add(topic.asText()));
        consumer.subscribe(topics);
        consumers.put(name, consumer);
        failures.put(name, failed);
        return nothing();
    }

    private JsonNode poll(KafkaShareConsumer<byte[], byte[]> consumer, JsonNode request) throws Exception {
        ArrayNode records = Agent.JSON.createArrayNode();
        for (ConsumerRecord<byte[], byte[]> record :
                consumer.poll(Duration.ofMillis(request.get("wait_ms").asLong()))) {
            // Release 3 does not tell it.
            Object deliveries = ConsumerRecord.class.getMethod("deliveryCount").invoke(record);
            records.add(Records.encode(record).put("deliveries", Integer.parseInt(deliveries.toString().replaceAll("\\D", ""))));
        }
        return records;
    }

    private JsonNode acknowledge(KafkaShareConsumer<byte[], byte[]> consumer, JsonNode request) {
        for (JsonNode each : request.get("records")) {
            ConsumerRecord<byte[], byte[]> record = new ConsumerRecord<>(
                    each.get("topic").asText(), each.get("partition").asInt(), each.get("offset").asLong(), null, null);
            consumer.acknowledge(record, AcknowledgeType.valueOf(each.get("type").asText()));
        }
        return nothing();
    }

    /** What was acknowledged and failed since the last time. */
    private JsonNode commit(String name) {
        ArrayNode failed = Agent.JSON.createArrayNode();
        consumers.get(name).commitSync().values().forEach(
                outcome -> outcome.ifPresent(failure -> failed.add(failure.getClass().getSimpleName())));
        failures.get(name).forEach(failed::add);
        failures.get(name).clear();
        return failed;
    }

    private Admin admin(JsonNode request) {
        return admins.computeIfAbsent(
                request.get("bootstrap").asText(),
                address -> Admin.create(Map.of(
                        "bootstrap.servers", address,
                        "request.timeout.ms", "10000",
                        "default.api.timeout.ms", "30000")));
    }

    private JsonNode alterConfigs(JsonNode request, String group) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        request.get("set").fields().forEachRemaining(each -> changes.add(new AlterConfigOp(
                new ConfigEntry(each.getKey(), each.getValue().asText()), AlterConfigOp.OpType.SET)));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.forId((byte) 32), group);
        admin(request).incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        return nothing();
    }

    private JsonNode describe(JsonNode request, String group) throws Exception {
        Map<?, ?> all = (Map<?, ?>)
                call(request, "describeShareGroups", "all", new Class<?>[] {Collection.class}, List.of(group));
        Object found = all.get(group);
        return nothing()
                .put("state", found.getClass().getMethod("groupState").invoke(found).toString())
                .put("members", ((Collection<?>) found.getClass().getMethod("members").invoke(found)).size());
    }

    private JsonNode offsets(JsonNode request, String group) throws Exception {
        Class<?> spec = Class.forName("org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec");
        Object all = spec.getConstructor().newInstance();
        Map<?, ?> found = (Map<?, ?>)
                call(request, "listShareGroupOffsets", "all", new Class<?>[] {Map.class}, Map.of(group, all));
        ArrayNode offsets = Agent.JSON.createArrayNode();
        for (Map.Entry<?, ?> each : ((Map<?, ?>) found.get(group)).entrySet()) {
            TopicPartition partition = (TopicPartition) each.getKey();
            Object info = each.getValue();
            offsets.addObject()
                    .put("topic", partition.topic())
                    .put("partition", partition.partition())
                    .put("offset", (Long) info.getClass().getMethod("startOffset").invoke(info))
                    .put("metadata", "");
        }
        return offsets;
    }

    /** Calls that release 3 has not. */
    private Object call(JsonNode request, String name, String outcome, Class<?>[] kinds, Object... arguments)
            throws Exception {
        Object result = Admin.class.getMethod(name, kinds).invoke(admin(request), arguments);
        return ((KafkaFuture<?>) result.getClass().getMethod(outcome).invoke(result)).get();
    }

    private static ObjectNode nothing() {
        return Agent.JSON.createObjectNode();
    }
}
