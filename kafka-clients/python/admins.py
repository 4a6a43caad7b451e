"""Administration: one client for each address."""

import kafka.errors
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, OffsetSpec


def place(request):
    return TopicPartition(request["topic"], request["partition"])


class Admins:
    def __init__(self):
        self.admins = {}

    def admin(self, request):
        address = request["bootstrap"]
        if address not in self.admins:
            self.admins[address] = KafkaAdminClient(
                bootstrap_servers=address, request_timeout_ms=10000, reconnect_backoff_max_ms=500
            )
        return self.admins[address]

    def op_create_topic(self, request):
        options = {"num_partitions": request["partitions"], "configs": request.get("configs", {})}
        self.admin(request).create_topics({request["topic"]: options})
        return {}

    def op_delete_topic(self, request):
        self.admin(request).delete_topics([request["topic"]])
        return {}

    def op_list_topics(self, request):
        return self.admin(request).list_topics()

    def op_describe_topic(self, request):
        topic = self.admin(request).describe_topics([request["topic"]])[0]
        check(topic.get("error_code", 0))
        return {
            "id": str(topic.get("topic_id")),
            "partitions": [
                {
                    "partition": each["partition_index"],
                    "leader": each["leader_id"],
                    "replicas": each["replica_nodes"],
                    "isr": each["isr_nodes"],
                }
                for each in sorted(topic["partitions"], key=lambda each: each["partition_index"])
            ],
        }

    def op_describe_configs(self, request):
        resource = ConfigResource(ConfigResourceType.TOPIC, request["topic"])
        described = self.admin(request).describe_configs([resource], config_filter="all")
        return {
            name: {
                "value": entry["value"],
                "own": entry["config_source"] == "DYNAMIC_TOPIC_CONFIG",
            }
            for name, entry in described["topic"][request["topic"]].items()
        }

    def op_alter_configs(self, request):
        changes = {name: (AlterConfigOp.SET, value) for name, value in request.get("set", {}).items()}
        changes.update({name: (AlterConfigOp.DELETE, None) for name in request.get("delete", [])})
        resource = ConfigResource(ConfigResourceType.TOPIC, request["topic"], changes)
        # The broker is to refuse what it does not know.
        results = self.admin(request).alter_configs([resource], raise_on_unknown=False, incremental=True)
        judge(results["topic"][request["topic"]])
        return {}

    def op_create_partitions(self, request):
        self.admin(request).create_partitions({request["topic"]: request["count"]})
        return {}

    def op_describe_cluster(self, request):
        described = self.admin(request).describe_cluster()
        return {
            "cluster_id": described["cluster_id"],
            "controller": described["controller_id"],
            "nodes": [
                {
                    "id": each.get("broker_id", each.get("node_id")),
                    "host": each["host"],
                    "port": each["port"],
                }
                for each in described["brokers"]
            ],
        }

    def op_delete_records(self, request):
        answer = self.admin(request).delete_records({place(request): request["before"]})
        found = answer[place(request)]
        check(found.get("error_code", 0))
        return {"low": found["low_watermark"]}

    def op_list_offsets(self, request):
        at = request["at"]
        spec = {
            "earliest": OffsetSpec.EARLIEST,
            "latest": OffsetSpec.LATEST,
            "max_timestamp": OffsetSpec.MAX_TIMESTAMP,
        }.get(at, at)
        found = self.admin(request).list_partition_offsets({place(request): spec})[place(request)]
        return {"offset": found.offset, "timestamp": found.timestamp}

    def op_list_groups(self, request):
        return [
            {
                "group": each["group_id"],
                "protocol_type": each["protocol_type"],
                "state": each.get("group_state"),
            }
            for each in self.admin(request).list_groups()
        ]

    def op_describe_group(self, request):
        group = self.admin(request).describe_groups([request["group"]])[request["group"]]
        if group["error"] is not None:
            raise kafka.errors.KafkaError(group["error"])
        members = []
        for each in group["members"]:
            assignment = each["member_assignment"]
            topics = assignment["assigned_partitions"] if isinstance(assignment, dict) else []
            members.append(
                {
                    "member": each["member_id"],
                    "client": each["client_id"],
                    "instance": each.get("group_instance_id"),
                    "assignment": [
                        {"topic": topic["topic"], "partition": partition}
                        for topic in topics
                        for partition in topic["partitions"]
                    ],
                }
            )
        return {"state": group["group_state"], "strategy": group["protocol_data"], "members": members}

    def op_delete_group(self, request):
        judge(self.admin(request).delete_groups([request["group"]])[request["group"]])
        return {}

    def op_group_offsets(self, request):
        found = self.admin(request).list_group_offsets(request["group"])[request["group"]]
        return [
            {
                "topic": at.topic,
                "partition": at.partition,
                "offset": offset.offset,
                "metadata": offset.metadata,
            }
            for at, offset in found.items()
        ]

    def op_delete_offsets(self, request):
        partitions = [TopicPartition(request["topic"], each) for each in request["partitions"]]
        for result in self.admin(request).delete_group_offsets(request["group"], partitions).values():
            if result is not kafka.errors.NoError:
                raise result()
        return {}


def check(code):
    if code != 0:
        raise kafka.errors.for_code(code)()


def judge(result):
    """Some calls answer the name of an error's class."""
    if isinstance(result, str):
        name = result.split(":")[0].split("(")[0]
        if name not in ("OK", "NoError", ""):
            raise getattr(kafka.errors, name, kafka.errors.KafkaError)(result)
    elif isinstance(result, BaseException):
        raise result
