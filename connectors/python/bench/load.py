"""One producer or consumer in this process: what it and the broker cost. Prints a line of JSON: see compare.py.

    load.py CLIENT CASE ADDRESS STREAM BROKER_PID SIZE WARM_UP RECORDS
"""

import json
import os
import sys
import time

BATCH = 128 << 10
LINGER_MS = 1
MEMORY = 64 << 20
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def busy_ns() -> int:
    """Time that all cores were not idle, since the machine started."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, interrupt, soft, stolen = map(int, file.readline().split()[1:9])
    return (user + nice + system + interrupt + soft + stolen) * TICK_NS


class Meter:
    """Counts from `start` to `stop`: CPU of this process and of the broker, and what others used."""

    def __init__(self, broker: str):
        self.broker = broker

    def now(self) -> tuple[int, int, int, int]:
        with open(f"/proc/{self.broker}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return time.monotonic_ns(), time.process_time_ns(), ticks * TICK_NS, busy_ns()

    def start(self) -> None:
        self.began = self.now()
        self.first = None

    def first_record(self) -> None:
        """What came before this, such as joining a group, is no part of the rate."""
        self.first = time.monotonic_ns()

    def stop(self, records: int) -> dict:
        wall, own, broker, busy = (after - before for after, before in zip(self.now(), self.began, strict=True))
        rate_wall = wall if self.first is None else self.began[0] + wall - self.first
        others = max(0, busy - own - broker) / (wall * os.cpu_count())
        return {
            "client_ns": round(own / records, 1),
            "broker_ns": round(broker / records, 1),
            "records_per_second": round(records * 1e9 / rate_wall),
            "others_percent": round(100 * others, 1),
        }


def kera_produce(address, stream, meter, value, warm_up, records):
    import kera

    with kera.Producer(stream, bootstrap=address, batch_size=BATCH, linger=LINGER_MS / 1000, memory_limit=MEMORY) as producer:
        send = producer.send
        for _ in range(warm_up):
            send(value)
        producer.flush()
        meter.start()
        for _ in range(records):
            send(value)
        producer.flush()
        return meter.stop(records)


def kafka_produce(address, stream, meter, value, warm_up, records):
    import confluent_kafka

    # As Kera's: of its own defaults it would wait 5 ms, gather up to 1 MB, and hold 100,000 records.
    producer = confluent_kafka.Producer({
        "bootstrap.servers": address,
        "acks": "all",
        "batch.size": BATCH,
        "linger.ms": LINGER_MS,
        "queue.buffering.max.kbytes": MEMORY >> 10,
        "queue.buffering.max.messages": 10_000_000,
        # Records that are stored are told of one by one otherwise, to nobody.
        "delivery.report.only.error": True,
    })
    produce, poll = producer.produce, producer.poll

    def send(count):
        for _ in range(count):
            while True:
                try:
                    produce(stream, value)
                    break
                except BufferError:
                    poll(0.01)
        if producer.flush(60) != 0:
            raise RuntimeError("records are left after a minute")

    send(warm_up)
    meter.start()
    send(records)
    return meter.stop(records)


def take(count, size, records):
    """Counts what a case was given."""
    if (count, size) != (records[0], records[0] * records[1]):
        raise RuntimeError(f"{count} records of {size} bytes came in place of {records}")


def kera_records(address, stream, group, meter, size, records):
    import kera

    meter.start()
    count = total = 0
    with kera.Consumer(stream, group, bootstrap=address) as consumer:
        for record in consumer:
            if not count:
                meter.first_record()
            total += len(record.value)
            count += 1
            if count == records:
                break
        took = meter.stop(records)
    take(count, total, (records, size))
    return took


def kera_by_batches(taken):
    """Of each batch `taken` says how many records it has, and how long their values are together."""

    def consume(address, stream, group, meter, size, records):
        import kera

        meter.start()
        count = total = 0
        with kera.Consumer(stream, group, bootstrap=address) as consumer:
            for batch in consumer.batches():
                if not count:
                    meter.first_record()
                of_batch = taken(batch)
                count += of_batch[0]
                total += of_batch[1]
                if count >= records:
                    break
            took = meter.stop(records)
        take(count, total, (records, size))
        return took

    return consume


def one_by_one(batch):
    count = total = 0
    for record in batch:
        total += len(record.value)
        count += 1
    return count, total


def by_arrow(batch):
    import nanoarrow

    array = nanoarrow.c_array(batch)
    # Values lie one after the other; the last offset of the column is the sum of their lengths.
    values = array.child(5)
    return len(array), values.view().buffer(1)[len(values)]


def kafka_consumer(address, stream, group):
    import confluent_kafka

    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        # By default it has 100,000 records ready, and then fetches none for a second, however fast they go.
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": MEMORY >> 10,
        "fetch.queue.backoff.ms": 10,
    })
    consumer.subscribe([stream])
    return consumer


def kafka_records(address, stream, group, meter, size, records):
    """By lists of 1,000, which is what costs least with this client."""
    meter.start()
    consumer = kafka_consumer(address, stream, group)
    count = total = 0
    while count < records:
        for message in consumer.consume(min(1000, records - count), 1.0):
            if message.error():
                raise RuntimeError(message.error())
            if not count:
                meter.first_record()
            total += len(message.value())
            count += 1
    took = meter.stop(records)
    consumer.close()
    take(count, total, (records, size))
    return took


def kafka_poll(address, stream, group, meter, size, records):
    meter.start()
    consumer = kafka_consumer(address, stream, group)
    count = total = 0
    while count < records:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise RuntimeError(message.error())
        if not count:
            meter.first_record()
        total += len(message.value())
        count += 1
    took = meter.stop(records)
    consumer.close()
    take(count, total, (records, size))
    return took


PRODUCERS = {"kera": kera_produce, "kafka": kafka_produce}
CONSUMERS = {
    "kera": kera_records,
    "kera-batches": kera_by_batches(one_by_one),
    "kera-arrow": kera_by_batches(by_arrow),
    "kafka": kafka_records,
    "kafka-poll": kafka_poll,
}


def main():
    client, case, address, stream, broker = sys.argv[1:6]
    size, warm_up, records = map(int, sys.argv[6:])
    meter = Meter(broker)
    if case == "produce":
        took = PRODUCERS[client](address, stream, meter, bytes(size), warm_up, records)
    else:
        group = f"{client}-{os.getpid()}"
        took = CONSUMERS[client](address, stream, group, meter, size, records)
    print(json.dumps(took))


main()
