package kera;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ConsumerGroupListing;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;

/** Administration: one client for each address. */
@SuppressWarnings("deprecation")
final class Admins {
    private final Map<String, Admin> admins = new HashMap<>();

    private Admin admin(JsonNode request) {
        return admins.computeIfAbsent(
                request.get("bootstrap").asText(),
                address -> Admin.create(Map.of(
                        "bootstrap.servers", address,
                        "request.timeout.ms", "10000",
                        "default.api.timeout.ms", "30000")));
    }

    JsonNode handle(String op, JsonNode request) throws Exception {
        String topic = request.path("topic").asText();
        String group = request.path("group").asText();
        switch (op) {
            case "create_topic":
                Map<String, String> configs = new HashMap<>();
                request.path("configs")
                        .fields()
                        .forEachRemaining(each -> configs.put(each.getKey(), each.getValue().asText()));
                NewTopic fresh = new NewTopic(
                                topic, Optional.of(request.get("partitions").asInt()), Optional.empty())
                        .configs(configs);
                admin(request).createTopics(List.of(fresh)).all().get();
                return nothing();
            case "delete_topic":
                admin(request).deleteTopics(List.of(topic)).all().get();
                return nothing();
            case "list_topics":
                ArrayNode names = Agent.JSON.createArrayNode();
                admin(request).listTopics().names().get().forEach(names::add);
                return names;
            case "describe_topic":
                return describeTopic(request, topic);
            case "describe_configs":
                return describeConfigs(request, topic);
            case "alter_configs":
                return alterConfigs(request, topic);
            case "create_partitions":
                admin(request)
                        .createPartitions(Map.of(
                                topic,
                                NewPartitions.increaseTo(request.get("count").asInt())))
                        .all()
                        .get();
                return nothing();
            case "describe_cluster":
                return describeCluster(request);
            case "delete_records":
                TopicPartition trimmed = partition(request);
                return nothing()
                        .put(
                                "low",
                                admin(request)
                                        .deleteRecords(Map.of(
                                                trimmed,
                                                RecordsToDelete.beforeOffset(
                                                        request.get("before").asLong())))
                                        .lowWatermarks()
                                        .get(trimmed)
                                        .get()
                                        .lowWatermark());
            case "list_offsets":
                return listOffsets(request);
            case "list_groups":
                ArrayNode groups = Agent.JSON.createArrayNode();
                // By calls that release 3 has, too.
                for (ConsumerGroupListing each : admin(request).listConsumerGroups().all().get()) {
                    groups.addObject()
                            .put("group", each.groupId())
                            .put("protocol_type", each.isSimpleConsumerGroup() ? "" : "consumer")
                            .put("state", each.state().map(Object::toString).orElse(null));
                }
                return groups;
            case "describe_group":
                return describeGroup(request, group);
            case "delete_group":
                admin(request).deleteConsumerGroups(List.of(group)).all().get();
                return nothing();
            case "group_offsets":
                ArrayNode offsets = Agent.JSON.createArrayNode();
                admin(request)
                        .listConsumerGroupOffsets(group)
                        .partitionsToOffsetAndMetadata()
                        .get()
                        .forEach((partition, offset) -> offsets.addObject()
                                .put("topic", partition.topic())
                                .put("partition", partition.partition())
                                .put("offset", offset.offset())
                                .put("metadata", offset.metadata()));
                return offsets;
            case "delete_offsets":
                Set<TopicPartition> partitions = new HashSet<>();
                request.get("partitions")
                        .forEach(each -> partitions.add(new TopicPartition(topic, each.asInt())));
                admin(request).deleteConsumerGroupOffsets(group, partitions).all().get();
                return nothing();
            default:
                return null;
        }
    }

    private JsonNode describeTopic(JsonNode request, String topic) throws Exception {
        TopicDescription described = admin(request)
                .describeTopics(List.of(topic))
                .allTopicNames()
                .get()
                .get(topic);
        ObjectNode answer = nothing();
        answer.put("id", described.topicId().toString());
        ArrayNode partitions = answer.putArray("partitions");
        for (TopicPartitionInfo each : described.partitions()) {
            ObjectNode partition = partitions.addObject();
            partition.put("partition", each.partition());
            partition.put("leader", each.leader() == null ? null : each.leader().id());
            ArrayNode replicas = partition.putArray("replicas");
            each.replicas().forEach(node -> replicas.add(node.id()));
            ArrayNode isr = partition.putArray("isr");
            each.isr().forEach(node -> isr.add(node.id()));
        }
        return answer;
    }

    private JsonNode describeConfigs(JsonNode request, String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        ObjectNode answer = nothing();
        for (ConfigEntry entry : admin(request)
                .describeConfigs(List.of(resource))
                .all()
                .get()
                .get(resource)
                .entries()) {
            answer.putObject(entry.name())
                    .put("value", entry.value())
                    .put("own", entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG);
        }
        return answer;
    }

    private JsonNode alterConfigs(JsonNode request, String topic) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        request.path("set")
                .fields()
                .forEachRemaining(each -> changes.add(new AlterConfigOp(
                        new ConfigEntry(each.getKey(), each.getValue().asText()),
                        AlterConfigOp.OpType.SET)));
        request.path("delete")
                .forEach(name -> changes.add(new AlterConfigOp(
                        new ConfigEntry(name.asText(), ""), AlterConfigOp.OpType.DELETE)));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        admin(request).incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        return nothing();
    }

    private JsonNode describeCluster(JsonNode request) throws Exception {
        DescribeClusterResult described = admin(request).describeCluster();
        ObjectNode answer = nothing();
        answer.put("cluster_id", described.clusterId().get());
        answer.put("controller", described.controller().get().id());
        ArrayNode nodes = answer.putArray("nodes");
        for (Node node : described.nodes().get()) {
            nodes.addObject().put("id", node.id()).put("host", node.host()).put("port", node.port());
        }
        return answer;
    }

    private JsonNode listOffsets(JsonNode request) throws Exception {
        JsonNode at = request.get("at");
        OffsetSpec spec;
        if (at.isNumber()) {
            spec = OffsetSpec.forTimestamp(at.asLong());
        } else {
            spec = switch (at.asText()) {
                case "earliest" -> OffsetSpec.earliest();
                case "latest" -> OffsetSpec.latest();
                default -> OffsetSpec.maxTimestamp();
            };
        }
        TopicPartition partition = partition(request);
        ListOffsetsResult.ListOffsetsResultInfo found = admin(request)
                .listOffsets(Map.of(partition, spec))
                .partitionResult(partition)
                .get();
        return nothing().put("offset", found.offset()).put("timestamp", found.timestamp());
    }

    private JsonNode describeGroup(JsonNode request, String group) throws Exception {
        ConsumerGroupDescription described = admin(request)
                .describeConsumerGroups(List.of(group))
                .describedGroups()
                .get(group)
                .get();
        ObjectNode answer = nothing();
        answer.put("state", described.state().toString());
        answer.put("strategy", described.partitionAssignor());
        ArrayNode members = answer.putArray("members");
        for (MemberDescription each : described.members()) {
            ObjectNode member = members.addObject();
            member.put("member", each.consumerId());
            member.put("client", each.clientId());
            member.put("instance", each.groupInstanceId().orElse(null));
            ArrayNode assignment = member.putArray("assignment");
            for (TopicPartition partition : each.assignment().topicPartitions()) {
                assignment.addObject()
                        .put("topic", partition.topic())
                        .put("partition", partition.partition());
            }
        }
        return answer;
    }

    private static TopicPartition partition(JsonNode request) {
        return new TopicPartition(
                request.get("topic").asText(), request.get("partition").asInt());
    }

    private static ObjectNode nothing() {
        return Agent.JSON.createObjectNode();
    }
}
