"""Does with aiokafka what the test asks for: one JSON request per line, one answer per line."""

import asyncio
import json
import os
import sys

import aiokafka.errors as errors
from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    OffsetAndMetadata,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

NAMES = {
    1: "OFFSET_OUT_OF_RANGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
    36: "TOPIC_ALREADY_EXISTS",
    37: "INVALID_PARTITIONS",
    38: "INVALID_REPLICATION_FACTOR",
    40: "INVALID_CONFIG",
}


def describe(failure):
    """Kafka's name for a failure."""
    number = getattr(failure, "errno", None)
    if isinstance(failure, errors.OffsetOutOfRangeError):
        number = 1
    if isinstance(failure, errors.KafkaError) and isinstance(number, int) and number > 0:
        name = NAMES.get(number, failure.message)
    else:
        name = "CLIENT:" + type(failure).__name__
    return {"error": name, "message": str(failure)}


def check(code):
    if code != 0:
        raise errors.for_code(code)()


def unhex(text):
    return None if text is None else bytes.fromhex(text)


def tohex(data):
    return None if data is None else bytes(data).hex()


def place(request):
    return TopicPartition(request["topic"], request["partition"])


class Rebalances(ConsumerRebalanceListener):
    """How often partitions came and went."""

    def __init__(self):
        self.assigned = 0
        self.revoked = 0

    async def on_partitions_assigned(self, assigned):
        self.assigned += len(assigned)

    async def on_partitions_revoked(self, revoked):
        self.revoked += len(revoked)


class Agent:
    def __init__(self):
        self.admins = {}
        self.producers = {}
        self.consumers = {}
        self.rebalances = {}

    # Producers.

    async def op_producer(self, request):
        acks = request.get("acks", "all")
        codec = request.get("compression", "none")
        producer = AIOKafkaProducer(
            bootstrap_servers=request["bootstrap"],
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=acks == "all" and request.get("idempotent", True),
            compression_type=None if codec == "none" else codec,
            linger_ms=request.get("linger_ms", 20),
            max_batch_size=request.get("batch_bytes", 16384),
            request_timeout_ms=request.get("max_block_ms", 60000),
        )
        await producer.start()
        self.producers[request["producer"]] = producer
        return {}

    async def op_send(self, request):
        producer = self.producers[request["producer"]]
        sent = []
        for record in request["records"]:
            try:
                sent.append(
                    await producer.send(
                        request["topic"],
                        key=unhex(record.get("key")),
                        value=unhex(record.get("value")),
                        partition=record.get("partition"),
                        timestamp_ms=record.get("timestamp"),
                        headers=[(name, unhex(value)) for name, value in record.get("headers") or []],
                    )
                )
            except errors.KafkaError as failure:
                sent.append(failure)
        places = []
        for each in sent:
            try:
                if isinstance(each, Exception):
                    raise each
                found = await each
                # Nothing is known of what was sent without acknowledgement.
                places.append(
                    {
                        "partition": -1 if found is None else found.partition,
                        "offset": -1 if found is None else found.offset,
                    }
                )
            except errors.KafkaError as failure:
                places.append(describe(failure))
        return places

    async def op_close_producer(self, request):
        await self.producers.pop(request["producer"]).stop()
        return {}

    # Consumers.

    async def op_consumer(self, request):
        consumer = AIOKafkaConsumer(
            bootstrap_servers=request["bootstrap"],
            client_id=request["consumer"],
            group_id=request.get("group"),
            group_instance_id=request.get("instance"),
            session_timeout_ms=request.get("session_ms", 10000),
            heartbeat_interval_ms=300,
            partition_assignment_strategy=[RangePartitionAssignor],
            enable_auto_commit=False,
            auto_offset_reset=request.get("reset", "earliest"),
            fetch_max_wait_ms=200,
            metadata_max_age_ms=1000,
        )
        await consumer.start()
        self.consumers[request["consumer"]] = consumer
        return {}

    def get(self, request):
        return self.consumers[request["consumer"]]

    async def seek(self, consumer, partition, to):
        if to == "beginning":
            await consumer.seek_to_beginning(partition)
        elif to == "end":
            await consumer.seek_to_end(partition)
        else:
            consumer.seek(partition, to)

    async def op_assign(self, request):
        partitions = [TopicPartition(request["topic"], each) for each in request["partitions"]]
        self.get(request).assign(partitions)
        if request.get("from") is not None:
            for partition in partitions:
                await self.seek(self.get(request), partition, request["from"])
        return {}

    async def op_subscribe(self, request):
        self.rebalances[request["consumer"]] = Rebalances()
        self.get(request).subscribe(
            request["topics"], listener=self.rebalances[request["consumer"]]
        )
        return {}

    async def op_poll(self, request):
        consumer = self.get(request)
        records = []
        for batch in (await consumer.getmany(timeout_ms=request["wait_ms"])).values():
            for record in batch:
                records.append(
                    {
                        "topic": record.topic,
                        "partition": record.partition,
                        "offset": record.offset,
                        "timestamp": record.timestamp,
                        "append_time": record.timestamp_type == 1,
                        "key": tohex(record.key),
                        "value": tohex(record.value),
                        "headers": [[name, tohex(value)] for name, value in record.headers],
                    }
                )
        answer = {
            "records": records,
            "assignment": [
                {"topic": each.topic, "partition": each.partition} for each in consumer.assignment()
            ],
        }
        seen = self.rebalances.get(request["consumer"])
        if seen is not None:
            answer.update(assigned=seen.assigned, revoked=seen.revoked)
        return answer

    async def op_seek(self, request):
        await self.seek(self.get(request), place(request), request["to"])
        return {}

    async def op_position(self, request):
        return {"offset": await self.get(request).position(place(request))}

    async def op_commit(self, request):
        await self.get(request).commit(
            {
                TopicPartition(request["topic"], each["partition"]): OffsetAndMetadata(
                    each["offset"], each.get("metadata", "")
                )
                for each in request["offsets"]
            }
        )
        return {}

    async def op_committed(self, request):
        answer = []
        for partition in request["partitions"]:
            found = await self.get(request).committed(TopicPartition(request["topic"], partition))
            if found is not None:
                answer.append({"partition": partition, "offset": found})
        return answer

    async def op_offset_for_time(self, request):
        at = place(request)
        found = (await self.get(request).offsets_for_times({at: request["timestamp"]}))[at]
        return {"offset": None if found is None else found.offset}

    async def op_watermarks(self, request):
        at, consumer = place(request), self.get(request)
        return {
            "low": (await consumer.beginning_offsets([at]))[at],
            "high": (await consumer.end_offsets([at]))[at],
        }

    async def op_close_consumer(self, request):
        await self.consumers.pop(request["consumer"]).stop()
        return {}

    # Administration.

    async def admin(self, request):
        address = request["bootstrap"]
        if address not in self.admins:
            self.admins[address] = AIOKafkaAdminClient(bootstrap_servers=address)
            await self.admins[address].start()
        return self.admins[address]

    async def op_create_topic(self, request):
        admin = await self.admin(request)
        topic = NewTopic(
            request["topic"], request["partitions"], 1, topic_configs=request.get("configs", {})
        )
        for _, code, *_ in (await admin.create_topics([topic])).topic_errors:
            check(code)
        return {}

    async def op_delete_topic(self, request):
        admin = await self.admin(request)
        for _, code in (await admin.delete_topics([request["topic"]])).topic_error_codes:
            check(code)
        return {}

    async def op_list_topics(self, request):
        return await (await self.admin(request)).list_topics()

    async def op_describe_topic(self, request):
        admin = await self.admin(request)
        # Asking for one topic's metadata would create it.
        for topic in await admin.describe_topics():
            if topic["topic"] == request["topic"]:
                check(topic["error_code"])
                return {
                    "partitions": [
                        {
                            "partition": each["partition"],
                            "leader": each["leader"],
                            "replicas": each["replicas"],
                            "isr": each["isr"],
                        }
                        for each in sorted(topic["partitions"], key=lambda each: each["partition"])
                    ]
                }
        raise errors.UnknownTopicOrPartitionError()

    async def op_create_partitions(self, request):
        admin = await self.admin(request)
        new = {request["topic"]: NewPartitions(request["count"])}
        for _, code, *_ in (await admin.create_partitions(new)).topic_errors:
            check(code)
        return {}

    async def op_delete_records(self, request):
        admin = await self.admin(request)
        asked = {place(request): RecordsToDelete(before_offset=request["before"])}
        return {"low": (await admin.delete_records(asked))[place(request)]}

    async def op_list_offsets(self, request):
        consumer = AIOKafkaConsumer(bootstrap_servers=request["bootstrap"])
        await consumer.start()
        at = place(request)
        try:
            if request["at"] == "earliest":
                return {"offset": (await consumer.beginning_offsets([at]))[at]}
            if request["at"] == "latest":
                return {"offset": (await consumer.end_offsets([at]))[at]}
            found = (await consumer.offsets_for_times({at: request["at"]}))[at]
            return {"offset": None if found is None else found.offset}
        finally:
            await consumer.stop()

    async def op_list_groups(self, request):
        listed = await (await self.admin(request)).list_consumer_groups()
        return [{"group": group, "protocol_type": kind, "state": None} for group, kind, *_ in listed]

    async def op_group_offsets(self, request):
        found = await (await self.admin(request)).list_consumer_group_offsets(request["group"])
        return [
            {
                "topic": at.topic,
                "partition": at.partition,
                "offset": offset.offset,
                "metadata": offset.metadata,
            }
            for at, offset in found.items()
        ]


async def main():
    # Nothing that a library prints may get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    agent = Agent()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        action = getattr(agent, "op_" + request["op"], None)
        try:
            if action is None:
                answer = {"unsupported": request["op"]}
            else:
                answer = {"ok": await action(request)}
        except Exception as failure:  # the test judges it
            answer = describe(failure)
        answers.write(json.dumps(answer) + "\n")
    # Clients that a test left open must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
