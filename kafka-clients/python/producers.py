"""The producers that the test opened, by name."""

from kafka import KafkaProducer
from kafka.errors import KafkaError

from logins import settings


def unhex(text):
    return None if text is None else bytes.fromhex(text)


class Producers:
    def __init__(self, describe):
        self.producers = {}
        self.describe = describe

    def op_producer(self, request):
        acks = request.get("acks", "all")
        codec = request.get("compression", "none")
        self.producers[request["producer"]] = KafkaProducer(
            bootstrap_servers=request["bootstrap"],
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=acks == "all" and request.get("idempotent", True),
            compression_type=None if codec == "none" else codec,
            linger_ms=request.get("linger_ms", 20),
            batch_size=request.get("batch_bytes", 16384),
            max_block_ms=request.get("max_block_ms", 60000),
            delivery_timeout_ms=60000,
            request_timeout_ms=10000,
            reconnect_backoff_max_ms=500,
            allow_auto_create_topics=request.get("auto_create", False),
            **settings(request),
        )
        return {}

    def op_send(self, request):
        """Sends all records, then answers where each of them is, or why it is nowhere."""
        producer = self.producers[request["producer"]]
        sent = []
        for record in request["records"]:
            headers = [(name, unhex(value)) for name, value in record.get("headers") or []]
            try:
                sent.append(
                    producer.send(
                        request["topic"],
                        key=unhex(record.get("key")),
                        value=unhex(record.get("value")),
                        headers=headers,
                        partition=record.get("partition"),
                        timestamp_ms=record.get("timestamp"),
                    )
                )
            except KafkaError as failure:
                sent.append(failure)
        producer.flush()
        places = []
        for each in sent:
            if isinstance(each, Exception):
                places.append(self.describe(each))
                continue
            try:
                place = each.get(timeout=60)
                places.append(
                    {
                        "partition": place.partition,
                        "offset": place.offset,
                        "timestamp": place.timestamp,
                    }
                )
            except KafkaError as failure:
                places.append(self.describe(failure))
        return places

    def op_close_producer(self, request):
        self.producers.pop(request["producer"]).close()
        return {}

