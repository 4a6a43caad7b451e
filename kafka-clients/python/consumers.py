"""The consumers that the test opened, by name."""

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor

from logins import settings


def tohex(data):
    return None if data is None else bytes(data).hex()


def place(request):
    return TopicPartition(request["topic"], request["partition"])


class Rebalances(ConsumerRebalanceListener):
    """How often partitions came and went."""

    def __init__(self):
        self.assigned = 0
        self.revoked = 0
        self.lost = 0

    def on_partitions_assigned(self, assigned):
        self.assigned += len(assigned)

    def on_partitions_revoked(self, revoked):
        self.revoked += len(revoked)

    def on_partitions_lost(self, lost):
        self.lost += len(lost)


class Consumers:
    def __init__(self):
        self.consumers = {}
        self.rebalances = {}

    def op_consumer(self, request):
        more = {}
        if request.get("group"):
            strategy = request.get("strategy", "range")
            more = {
                "group_id": request["group"],
                "group_instance_id": request.get("instance"),
                "session_timeout_ms": request.get("session_ms", 10000),
                "heartbeat_interval_ms": 300,
                "partition_assignment_strategy": [
                    CooperativeStickyAssignor if strategy == "cooperative" else RangePartitionAssignor
                ],
            }
        self.consumers[request["consumer"]] = KafkaConsumer(
            bootstrap_servers=request["bootstrap"],
            client_id=request["consumer"],
            enable_auto_commit=False,
            auto_offset_reset=request.get("reset", "earliest"),
            allow_auto_create_topics=request.get("auto_create", False),
            fetch_max_wait_ms=200,
            metadata_max_age_ms=1000,
            reconnect_backoff_max_ms=500,
            **settings(request),
            **more,
        )
        return {}

    def get(self, request):
        return self.consumers[request["consumer"]]

    def op_assign(self, request):
        partitions = [TopicPartition(request["topic"], each) for each in request["partitions"]]
        self.get(request).assign(partitions)
        if request.get("from") is not None:
            for partition in partitions:
                self.seek(self.get(request), partition, request["from"])
        return {}

    def op_subscribe(self, request):
        listener = Rebalances()
        self.rebalances[request["consumer"]] = listener
        self.get(request).subscribe(request["topics"], listener=listener)
        return {}

    def op_poll(self, request):
        consumer = self.get(request)
        records = []
        for batch in consumer.poll(timeout_ms=request["wait_ms"]).values():
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
            answer.update(assigned=seen.assigned, revoked=seen.revoked, lost=seen.lost)
        return answer

    def seek(self, consumer, partition, to):
        if to == "beginning":
            consumer.seek_to_beginning(partition)
        elif to == "end":
            consumer.seek_to_end(partition)
        else:
            consumer.seek(partition, to)

    def op_seek(self, request):
        self.seek(self.get(request), place(request), request["to"])
        return {}

    def op_position(self, request):
        return {"offset": self.get(request).position(place(request))}

    def op_commit(self, request):
        self.get(request).commit(
            {
                TopicPartition(request["topic"], each["partition"]): OffsetAndMetadata(
                    each["offset"], each.get("metadata", ""), -1
                )
                for each in request["offsets"]
            }
        )
        return {}

    def op_committed(self, request):
        answer = []
        for partition in request["partitions"]:
            found = self.get(request).committed(
                TopicPartition(request["topic"], partition), metadata=True
            )
            if found is not None:
                answer.append(
                    {"partition": partition, "offset": found.offset, "metadata": found.metadata}
                )
        return answer

    def op_offset_for_time(self, request):
        at = place(request)
        found = self.get(request).offsets_for_times({at: request["timestamp"]})[at]
        return {
            "offset": None if found is None else found.offset,
            "timestamp": None if found is None else found.timestamp,
        }

    def op_watermarks(self, request):
        at = place(request)
        consumer = self.get(request)
        return {"low": consumer.beginning_offsets([at])[at], "high": consumer.end_offsets([at])[at]}

    def op_close_consumer(self, request):
        self.consumers.pop(request["consumer"]).close()
        return {}
