package kera;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The producers that the test opened, by name. */
final class Producers {
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private final Consumers consumers;

    Producers(Consumers consumers) {
        this.consumers = consumers;
    }

    JsonNode handle(String op, JsonNode request) throws Exception {
        switch (op) {
            case "producer":
                return open(request);
            case "send":
                return send(request);
            case "init_transactions":
                producer(request).initTransactions();
                return Agent.JSON.createObjectNode();
            case "begin_transaction":
                producer(request).beginTransaction();
                return Agent.JSON.createObjectNode();
            case "commit_transaction":
                producer(request).commitTransaction();
                return Agent.JSON.createObjectNode();
            case "abort_transaction":
                producer(request).abortTransaction();
                return Agent.JSON.createObjectNode();
            case "send_offsets":
                return sendOffsets(request);
            case "close_producer":
                producers.remove(request.get("producer").asText()).close();
                return Agent.JSON.createObjectNode();
            default:
                return null;
        }
    }

    private KafkaProducer<byte[], byte[]> producer(JsonNode request) {
        return producers.get(request.get("producer").asText());
    }

    /** Commits a group's offsets as part of the transaction. */
    private JsonNode sendOffsets(JsonNode request) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode each : request.get("offsets")) {
            offsets.put(
                    new TopicPartition(request.get("topic").asText(), each.get(0).asInt()),
                    new OffsetAndMetadata(each.get(1).asLong()));
        }
        ConsumerGroupMetadata group = consumers.groupMetadata(request.get("consumer").asText());
        producer(request).sendOffsetsToTransaction(offsets, group);
        return Agent.JSON.createObjectNode();
    }

    private JsonNode open(JsonNode request) {
        Properties settings = new Properties();
        if (request.path("transactional_id").isTextual()) {
            settings.put("transactional.id", request.get("transactional_id").asText());
            settings.put("transaction.timeout.ms", request.path("transaction_ms").asText("60000"));
        }
        settings.put("bootstrap.servers", request.get("bootstrap").asText());
        settings.put("acks", request.path("acks").asText("all"));
        settings.put("enable.idempotence", request.path("idempotent").asText("true"));
        settings.put("compression.type", request.path("compression").asText("none"));
        settings.put("linger.ms", request.path("linger_ms").asText("20"));
        settings.put("batch.size", request.path("batch_bytes").asText("16384"));
        settings.put("max.request.size", request.path("max_request").asText("1048576"));
        settings.put("delivery.timeout.ms", "60000");
        settings.put("max.block.ms", request.path("max_block_ms").asText("60000"));
        settings.put("request.timeout.ms", "10000");
        // How to log in, and what a test sets by name.
        request.path("config")
                .fields()
                .forEachRemaining(each -> settings.put(each.getKey(), each.getValue().asText()));
        producers.put(
                request.get("producer").asText(),
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer()));
        return Agent.JSON.createObjectNode();
    }

    /** Sends all records, then answers where each of them is, or why it is nowhere. */
    private JsonNode send(JsonNode request) throws Exception {
        KafkaProducer<byte[], byte[]> producer = producers.get(request.get("producer").asText());
        String topic = request.get("topic").asText();
        List<Object> sent = new ArrayList<>();
        for (JsonNode record : request.get("records")) {
            try {
                sent.add(producer.send(Records.decode(topic, record)));
            } catch (RuntimeException failure) {
                sent.add(failure);
            }
        }
        producer.flush();
        ArrayNode places = Agent.JSON.createArrayNode();
        for (Object each : sent) {
            ObjectNode place = places.addObject();
            if (each instanceof Throwable failure) {
                Agent.describe(failure, place);
                continue;
            }
            try {
                RecordMetadata metadata = (RecordMetadata) ((Future<?>) each).get();
                place.put("partition", metadata.partition());
                place.put("offset", metadata.offset());
                place.put("timestamp", metadata.timestamp());
            } catch (ExecutionException failure) {
                Agent.describe(failure, place);
            }
        }
        return places;
    }
}
