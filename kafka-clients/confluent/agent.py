"""Does with confluent-kafka what the test asks for: one JSON request per line, one answer per line."""

import json
import os
import sys
import time

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    TIMESTAMP_LOG_APPEND_TIME,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

WAIT = 30
NAMES = {
    1: "OFFSET_OUT_OF_RANGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
    36: "TOPIC_ALREADY_EXISTS",
    37: "INVALID_PARTITIONS",
    40: "INVALID_CONFIG",
    68: "NON_EMPTY_GROUP",
    69: "GROUP_ID_NOT_FOUND",
}
OWN = {-192: "MessageTimedOut", -188: "UnknownTopic", -140: "AutoOffsetReset"}
# The library mends these by itself.
PASSING = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, 3}


def describe(failure):
    """Kafka's name for a failure."""
    error = failure.args[0] if isinstance(failure, KafkaException) else failure
    if isinstance(error, KafkaError):
        code = error.code()
        name = NAMES.get(code, error.name()) if code > 0 else "CLIENT:" + OWN.get(code, error.name())
    else:
        name = "CLIENT:" + type(failure).__name__
    return {"error": name, "message": str(failure)}


def unhex(text):
    return None if text is None else bytes.fromhex(text)


def tohex(data):
    return None if data is None else bytes(data).hex()


def base(request):
    return {
        "bootstrap.servers": request["bootstrap"],
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": 1000,
        "log_level": 3,
        # How to log in.
        **request.get("config", {}),
    }


def place(request):
    return TopicPartition(request["topic"], request["partition"])


class Agent:
    def __init__(self):
        self.admins = {}
        self.producers = {}
        self.consumers = {}
        self.counts = {}

    # Producers.

    def op_producer(self, request):
        acks = request.get("acks", "all")
        idempotent = acks == "all" and request.get("idempotent", True)
        self.producers[request["producer"]] = Producer(
            {
                **base(request),
                "acks": acks,
                "enable.idempotence": idempotent,
                "compression.codec": request.get("compression", "none"),
                "linger.ms": request.get("linger_ms", 20),
                "batch.size": request.get("batch_bytes", 16384),
                "message.timeout.ms": request.get("max_block_ms", 60000),
                "allow.auto.create.topics": request.get("auto_create", False),
                "partitioner": "murmur2_random",
            }
        )
        return {}

    def op_send(self, request):
        producer = self.producers[request["producer"]]
        places = [None] * len(request["records"])

        def delivered(n):
            def note(error, message):
                if error is not None:
                    places[n] = describe(error)
                else:
                    # Nothing is known of what was sent without acknowledgement.
                    at = message.offset()
                    places[n] = {"partition": message.partition(), "offset": -1 if at is None else at}

            return note

        for n, record in enumerate(request["records"]):
            more = {}
            if record.get("partition") is not None:
                more["partition"] = record["partition"]
            if record.get("timestamp") is not None:
                more["timestamp"] = record["timestamp"]
            headers = [(name, unhex(value)) for name, value in record.get("headers") or []]
            try:
                producer.produce(
                    request["topic"],
                    key=unhex(record.get("key")),
                    value=unhex(record.get("value")),
                    headers=headers,
                    on_delivery=delivered(n),
                    **more,
                )
            except KafkaException as failure:
                places[n] = describe(failure)
        producer.flush(90)
        return places

    def op_close_producer(self, request):
        self.producers.pop(request["producer"]).flush(10)
        return {}

    # Consumers.

    def op_consumer(self, request):
        reset = {"none": "error"}.get(request.get("reset"), request.get("reset", "earliest"))
        strategy = request.get("strategy", "range")
        settings = {
            **base(request),
            "group.id": request.get("group", "none"),
            "client.id": request["consumer"],
            "session.timeout.ms": request.get("session_ms", 10000),
            "heartbeat.interval.ms": 300,
            "partition.assignment.strategy": "cooperative-sticky"
            if strategy == "cooperative"
            else "range",
            "enable.auto.commit": False,
            "auto.offset.reset": reset,
            "allow.auto.create.topics": request.get("auto_create", False),
            "fetch.wait.max.ms": 200,
            "fetch.error.backoff.ms": 50,
        }
        if request.get("instance"):
            settings["group.instance.id"] = request["instance"]
        if request.get("rack"):
            settings["client.rack"] = request["rack"]
        self.consumers[request["consumer"]] = Consumer(settings)
        self.counts[request["consumer"]] = {"assigned": 0, "revoked": 0, "lost": 0}
        return {}

    def get(self, request):
        return self.consumers[request["consumer"]]

    @staticmethod
    def offset(to):
        return {"beginning": OFFSET_BEGINNING, "end": OFFSET_END, None: OFFSET_STORED}.get(to, to)

    def op_assign(self, request):
        at = self.offset(request.get("from"))
        self.get(request).assign(
            [TopicPartition(request["topic"], each, at) for each in request["partitions"]]
        )
        return {}

    def op_subscribe(self, request):
        counts = self.counts[request["consumer"]]

        def note(which):
            def count(_, partitions):
                counts[which] += len(partitions)

            return count

        self.get(request).subscribe(
            request["topics"],
            on_assign=note("assigned"),
            on_revoke=note("revoked"),
            on_lost=note("lost"),
        )
        return {}

    def op_poll(self, request):
        consumer = self.get(request)
        records = []
        wait = request["wait_ms"] / 1000
        while (message := consumer.poll(0 if records else wait)) is not None:
            if message.error() is not None:
                if message.error().code() in PASSING:
                    continue
                raise KafkaException(message.error())
            kind, timestamp = message.timestamp()
            records.append(
                {
                    "topic": message.topic(),
                    "partition": message.partition(),
                    "offset": message.offset(),
                    "timestamp": timestamp,
                    "append_time": kind == TIMESTAMP_LOG_APPEND_TIME,
                    "key": tohex(message.key()),
                    "value": tohex(message.value()),
                    "headers": [[name, tohex(value)] for name, value in message.headers() or []],
                }
            )
        return {
            "records": records,
            "assignment": [
                {"topic": each.topic, "partition": each.partition} for each in consumer.assignment()
            ],
            **self.counts[request["consumer"]],
        }

    def op_seek(self, request):
        at = TopicPartition(request["topic"], request["partition"], self.offset(request["to"]))
        until = time.monotonic() + WAIT
        while True:
            try:
                self.get(request).seek(at)
                return {}
            except KafkaException:
                # An assignment takes effect in the background.
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def op_position(self, request):
        return {"offset": self.get(request).position([place(request)])[0].offset}

    def op_commit(self, request):
        offsets = [
            TopicPartition(
                request["topic"], each["partition"], each["offset"], each.get("metadata", "")
            )
            for each in request["offsets"]
        ]
        for each in self.get(request).commit(offsets=offsets, asynchronous=False):
            if each.error is not None:
                raise KafkaException(each.error)
        return {}

    def op_committed(self, request):
        asked = [TopicPartition(request["topic"], each) for each in request["partitions"]]
        return [
            {"partition": each.partition, "offset": each.offset, "metadata": each.metadata or ""}
            for each in self.get(request).committed(asked, WAIT)
            if each.offset >= 0
        ]

    def op_offset_for_time(self, request):
        at = TopicPartition(request["topic"], request["partition"], request["timestamp"])
        found = self.get(request).offsets_for_times([at], WAIT)[0].offset
        return {"offset": found if found >= 0 else None}

    def op_watermarks(self, request):
        low, high = self.get(request).get_watermark_offsets(place(request), WAIT)
        return {"low": low, "high": high}

    def op_close_consumer(self, request):
        self.consumers.pop(request["consumer"]).close()
        return {}

    # Administration.

    def admin(self, request):
        address = request["bootstrap"]
        if address not in self.admins:
            self.admins[address] = AdminClient(base(request))
        return self.admins[address]

    @staticmethod
    def only(futures):
        (future,) = futures.values()
        return future.result(WAIT)

    def op_create_topic(self, request):
        topic = NewTopic(request["topic"], request["partitions"], -1, config=request.get("configs", {}))
        self.only(self.admin(request).create_topics([topic]))
        return {}

    def op_delete_topic(self, request):
        self.only(self.admin(request).delete_topics([request["topic"]]))
        return {}

    def op_list_topics(self, request):
        return list(self.admin(request).list_topics(timeout=WAIT).topics)

    def op_describe_topic(self, request):
        collection = TopicCollection([request["topic"]])
        topic = self.only(self.admin(request).describe_topics(collection))
        return {
            "partitions": [
                {
                    "partition": each.id,
                    "leader": each.leader.id if each.leader is not None else None,
                    "replicas": [node.id for node in each.replicas],
                    "isr": [node.id for node in each.isr],
                }
                for each in topic.partitions
            ]
        }

    def op_describe_configs(self, request):
        resource = ConfigResource(ResourceType.TOPIC, request["topic"])
        entries = self.only(self.admin(request).describe_configs([resource]))
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {
            name: {"value": entry.value, "own": entry.source == own} for name, entry in entries.items()
        }

    def op_alter_configs(self, request):
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in request.get("set", {}).items()
        ]
        changes += [
            ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
            for name in request.get("delete", [])
        ]
        resource = ConfigResource(
            ResourceType.TOPIC, request["topic"], incremental_configs=changes
        )
        self.only(self.admin(request).incremental_alter_configs([resource]))
        return {}

    def op_create_partitions(self, request):
        new = NewPartitions(request["topic"], request["count"])
        self.only(self.admin(request).create_partitions([new]))
        return {}

    def op_describe_cluster(self, request):
        described = self.admin(request).describe_cluster().result(WAIT)
        return {
            "cluster_id": described.cluster_id,
            "controller": described.controller.id,
            "nodes": [
                {"id": each.id, "host": each.host, "port": each.port} for each in described.nodes
            ],
        }

    def op_delete_records(self, request):
        before = OFFSET_END if request["before"] == -1 else request["before"]
        at = TopicPartition(request["topic"], request["partition"], before)
        return {"low": self.only(self.admin(request).delete_records([at])).low_watermark}

    def op_list_offsets(self, request):
        at = request["at"]
        if isinstance(at, int):
            spec = OffsetSpec.for_timestamp(at)
        else:
            spec = {
                "earliest": OffsetSpec.earliest,
                "latest": OffsetSpec.latest,
                "max_timestamp": OffsetSpec.max_timestamp,
            }[at]()
        found = self.only(self.admin(request).list_offsets({place(request): spec}))
        return {"offset": found.offset if found.offset >= 0 else None, "timestamp": found.timestamp}

    def op_list_groups(self, request):
        listed = self.admin(request).list_consumer_groups().result(WAIT)
        return [
            {
                "group": each.group_id,
                "protocol_type": "" if each.is_simple_consumer_group else "consumer",
                "state": each.state.name if each.state is not None else None,
            }
            for each in listed.valid
        ]

    def op_describe_group(self, request):
        group = self.only(self.admin(request).describe_consumer_groups([request["group"]]))
        return {
            "state": group.state.name.capitalize(),
            "strategy": group.partition_assignor,
            "members": [
                {
                    "member": each.member_id,
                    "client": each.client_id,
                    "instance": each.group_instance_id,
                    "assignment": [
                        {"topic": part.topic, "partition": part.partition}
                        for part in each.assignment.topic_partitions
                    ],
                }
                for each in group.members
            ],
        }

    def op_delete_group(self, request):
        self.only(self.admin(request).delete_consumer_groups([request["group"]]))
        return {}

    def op_group_offsets(self, request):
        asked = ConsumerGroupTopicPartitions(request["group"])
        found = self.only(self.admin(request).list_consumer_group_offsets([asked]))
        return [
            {
                "topic": each.topic,
                "partition": each.partition,
                "offset": each.offset,
                "metadata": each.metadata or "",
            }
            for each in found.topic_partitions
        ]


def main():
    # Nothing that a library prints may get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    agent = Agent()
    for line in sys.stdin:
        request = json.loads(line)
        action = getattr(agent, "op_" + request["op"], None)
        try:
            answer = {"unsupported": request["op"]} if action is None else {"ok": action(request)}
        except Exception as failure:  # the test judges it
            answer = describe(failure)
        answers.write(json.dumps(answer) + "\n")
    # Clients that a test left open must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
