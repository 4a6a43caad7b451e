package kera;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HexFormat;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;

/** Records as they stand in requests and answers: bytes in hexadecimal digits. */
final class Records {
    static ProducerRecord<byte[], byte[]> decode(String topic, JsonNode node) {
        JsonNode partition = node.path("partition");
        JsonNode timestamp = node.path("timestamp");
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                topic,
                partition.isNumber() ? partition.asInt() : null,
                timestamp.isNumber() ? timestamp.asLong() : null,
                bytes(node.path("key")),
                bytes(node.path("value")));
        for (JsonNode header : node.path("headers")) {
            record.headers().add(header.get(0).asText(), bytes(header.get(1)));
        }
        return record;
    }

    static ObjectNode encode(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode node = Agent.JSON.createObjectNode();
        node.put("topic", record.topic());
        node.put("partition", record.partition());
        node.put("offset", record.offset());
        node.put("timestamp", record.timestamp());
        node.put("append_time", record.timestampType() == TimestampType.LOG_APPEND_TIME);
        node.put("key", hex(record.key()));
        node.put("value", hex(record.value()));
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(hex(header.value()));
        }
        return node;
    }

    private static byte[] bytes(JsonNode node) {
        return node.isTextual() ? HexFormat.of().parseHex(node.asText()) : null;
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? null : HexFormat.of().formatHex(bytes);
    }

    private Records() {}
}
