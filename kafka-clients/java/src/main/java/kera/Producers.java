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
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The producers that the test opened, by name. */
final class Producers {
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();

    JsonNode handle(String op, JsonNode request) throws Exception {
        switch (op) {
            case "producer":
                return open(request);
            case "send":
                return send(request);
            case "close_producer":
                producers.remove(request.get("producer").asText()).close();
                return Agent.JSON.createObjectNode();
            default:
                return null;
        }
    }

    private JsonNode open(JsonNode request) {
        Properties settings = new Properties();
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
