package kera;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The consumers that the test opened, by name. */
final class Consumers {
    private final Map<String, KafkaConsumer<byte[], byte[]>> consumers = new HashMap<>();
    private final Map<String, Rebalances> rebalances = new HashMap<>();

    /** How often partitions came and went. */
    private static final class Rebalances implements ConsumerRebalanceListener {
        int assigned;
        int revoked;
        int lost;

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assigned += partitions.size();
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked += partitions.size();
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            lost += partitions.size();
        }
    }

    ConsumerGroupMetadata groupMetadata(String name) {
        return consumers.get(name).groupMetadata();
    }

    JsonNode handle(String op, JsonNode request) {
        String name = request.path("consumer").asText();
        if (op.equals("consumer")) {
            return open(name, request);
        }
        KafkaConsumer<byte[], byte[]> consumer = consumers.get(name);
        if (consumer == null) {
            return null;
        }
        switch (op) {
            case "assign":
                return assign(consumer, request);
            case "subscribe":
                Rebalances listener = new Rebalances();
                rebalances.put(name, listener);
                List<String> topics = new ArrayList<>();
                request.get("topics").forEach(topic -> topics.add(topic.asText()));
                consumer.subscribe(topics, listener);
                return nothing();
            case "poll":
                return poll(name, consumer, request);
            case "seek":
                seek(consumer, partition(request), request.get("to"));
                return nothing();
            case "position":
                return nothing().put("offset", consumer.position(partition(request)));
            case "commit":
                return commit(consumer, request);
            case "committed":
                return committed(consumer, request);
            case "offset_for_time":
                return offsetForTime(consumer, request);
            case "watermarks":
                TopicPartition at = partition(request);
                return nothing()
                        .put("low", consumer.beginningOffsets(Set.of(at)).get(at))
                        .put("high", consumer.endOffsets(Set.of(at)).get(at));
            case "close_consumer":
                consumers.remove(name);
                consumer.close();
                return nothing();
            default:
                return null;
        }
    }

    private JsonNode open(String name, JsonNode request) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", request.get("bootstrap").asText());
        settings.put("client.id", name);
        if (request.path("group").isTextual()) {
            settings.put("group.id", request.get("group").asText());
            String strategy = request.path("strategy").asText("range");
            if (strategy.equals("consumer")) {
                // The broker says how long sessions are.
                settings.put("group.protocol", "consumer");
            } else {
                settings.put("session.timeout.ms", request.path("session_ms").asText("10000"));
                settings.put("heartbeat.interval.ms", "300");
                settings.put(
                        "partition.assignment.strategy",
                        strategy.equals("cooperative")
                                ? "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
                                : "org.apache.kafka.clients.consumer.RangeAssignor");
            }
        }
        if (request.path("instance").isTextual()) {
            settings.put("group.instance.id", request.get("instance").asText());
        }
        settings.put("isolation.level", request.path("isolation").asText("read_uncommitted"));
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", request.path("reset").asText("earliest"));
        settings.put("allow.auto.create.topics", request.path("auto_create").asText("false"));
        settings.put("fetch.max.wait.ms", "200");
        settings.put("default.api.timeout.ms", "30000");
        settings.put("metadata.max.age.ms", "1000");
        if (request.path("rack").isTextual()) {
            settings.put("client.rack", request.get("rack").asText());
            // For so long it stays with the broker that a leader names.
            settings.put("metadata.max.age.ms", "60000");
        }
        // How to log in, and what a test sets by name.
        request.path("config")
                .fields()
                .forEachRemaining(each -> settings.put(each.getKey(), each.getValue().asText()));
        consumers.put(
                name,
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer()));
        return nothing();
    }

    private JsonNode assign(KafkaConsumer<byte[], byte[]> consumer, JsonNode request) {
        List<TopicPartition> partitions = new ArrayList<>();
        request.get("partitions")
                .forEach(each -> partitions.add(
                        new TopicPartition(request.get("topic").asText(), each.asInt())));
        consumer.assign(partitions);
        JsonNode from = request.path("from");
        if (!from.isMissingNode() && !from.isNull()) {
            partitions.forEach(partition -> seek(consumer, partition, from));
        }
        return nothing();
    }

    private void seek(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, JsonNode to) {
        if (to.isNumber()) {
            consumer.seek(partition, to.asLong());
        } else if (to.asText().equals("beginning")) {
            consumer.seekToBeginning(Set.of(partition));
        } else {
            consumer.seekToEnd(Set.of(partition));
        }
    }

    private JsonNode poll(String name, KafkaConsumer<byte[], byte[]> consumer, JsonNode request) {
        ObjectNode answer = nothing();
        ArrayNode records = answer.putArray("records");
        for (ConsumerRecord<byte[], byte[]> record :
                consumer.poll(Duration.ofMillis(request.get("wait_ms").asLong()))) {
            records.add(Records.encode(record));
        }
        ArrayNode assignment = answer.putArray("assignment");
        for (TopicPartition partition : new HashSet<>(consumer.assignment())) {
            assignment.addObject().put("topic", partition.topic()).put("partition", partition.partition());
        }
        Rebalances seen = rebalances.get(name);
        if (seen != null) {
            answer.put("assigned", seen.assigned).put("revoked", seen.revoked).put("lost", seen.lost);
        }
        return answer;
    }

    private JsonNode commit(KafkaConsumer<byte[], byte[]> consumer, JsonNode request) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode each : request.get("offsets")) {
            offsets.put(
                    new TopicPartition(
                            request.get("topic").asText(), each.get("partition").asInt()),
                    new OffsetAndMetadata(
                            each.get("offset").asLong(), each.path("metadata").asText("")));
        }
        consumer.commitSync(offsets);
        return nothing();
    }

    private JsonNode committed(KafkaConsumer<byte[], byte[]> consumer, JsonNode request) {
        Set<TopicPartition> partitions = new HashSet<>();
        request.get("partitions")
                .forEach(each -> partitions.add(
                        new TopicPartition(request.get("topic").asText(), each.asInt())));
        ArrayNode answer = Agent.JSON.createArrayNode();
        consumer.committed(partitions).forEach((partition, offset) -> {
            if (offset != null) {
                answer.addObject()
                        .put("partition", partition.partition())
                        .put("offset", offset.offset())
                        .put("metadata", offset.metadata());
            }
        });
        return answer;
    }

    private JsonNode offsetForTime(KafkaConsumer<byte[], byte[]> consumer, JsonNode request) {
        TopicPartition partition = partition(request);
        OffsetAndTimestamp found = consumer
                .offsetsForTimes(Map.of(partition, request.get("timestamp").asLong()))
                .get(partition);
        return nothing()
                .put("offset", found == null ? null : found.offset())
                .put("timestamp", found == null ? null : found.timestamp());
    }

    private static TopicPartition partition(JsonNode request) {
        return new TopicPartition(
                request.get("topic").asText(), request.get("partition").asInt());
    }

    private static ObjectNode nothing() {
        return Agent.JSON.createObjectNode();
    }
}
