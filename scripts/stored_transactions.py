#!/usr/bin/env python3
"""stored_transactions.py HOST:PORT STREAM: as a Kafka producer of `transaction.version` 2, commits a transaction of three
records, aborts one of three, and leaves one of three open, in partition 0. Part of stored.sh; needs nothing but Python."""

import socket
import struct
import sys
import time

INIT_PRODUCER_ID, PRODUCE, END_TXN = 22, 0, 26


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def varint(number):
    number = (number << 1) ^ (number >> 63)
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def unsigned(number):
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def compact(data):
    return unsigned(len(data) + 1) + data


def batch(producer, epoch, sequence, values):
    now = int(time.time() * 1000)
    records = b""
    for at, value in enumerate(values):
        body = b"\0" + varint(0) + varint(at) + varint(-1) + varint(len(value)) + value + varint(0)
        records += varint(len(body)) + body
    transactional = 0x10
    rest = struct.pack(">hiqqqhii", transactional, len(values) - 1, now, now, producer, epoch, sequence, len(values)) + records
    body = struct.pack(">ibI", -1, 2, crc32c(rest)) + rest
    return struct.pack(">qi", 0, len(body)) + body


class Broker:
    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 30)

    def ask(self, api, version, body, flexible):
        head = struct.pack(">hhih", api, version, 7, -1) + (b"\0" if flexible else b"")
        self.socket.sendall(struct.pack(">i", len(head + body)) + head + body)
        size = struct.unpack(">i", self.read(4))[0]
        # Correlation, and tags.
        return self.read(size)[5 if flexible else 4 :]

    def read(self, size):
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                sys.exit("the broker has ended the connection")
            data += more
        return data


def until_done(what, ask):
    # While the coordinator still reads its state, or ends the transaction before: 14, 15, 16, 51.
    for _ in range(300):
        code, answer = ask()
        if code == 0:
            return answer
        if code not in (14, 15, 16, 51):
            break
        time.sleep(0.1)
    sys.exit(f"{what}: error {code}")


def main(address, stream):
    broker = Broker(address)
    for name in (b"kept", b"dropped", b"open"):

        def init():
            body = struct.pack(">h", len(name)) + name + struct.pack(">i", 900_000)
            answer = broker.ask(INIT_PRODUCER_ID, 1, body, False)
            code, producer, epoch = struct.unpack(">hqh", answer[4:16])
            return code, (producer, epoch)

        producer, epoch = until_done("InitProducerId", init)

        def produce():
            values = [b"%s %d" % (name, number) for number in range(3)]
            partition = struct.pack(">i", 0) + compact(batch(producer, epoch, 0, values)) + b"\0"
            topic = compact(stream.encode()) + unsigned(2) + partition + b"\0"
            body = compact(name) + struct.pack(">hi", -1, 30_000) + unsigned(2) + topic + b"\0"
            answer = broker.ask(PRODUCE, 12, body, True)
            # One topic of this name, one partition, its number and code.
            at = 1 + 1 + len(stream) + 1 + 4
            return struct.unpack(">h", answer[at : at + 2])[0], None

        until_done("Produce", produce)
        if name == b"open":
            return

        def end():
            body = compact(name) + struct.pack(">qh?", producer, epoch, name == b"kept") + b"\0"
            answer = broker.ask(END_TXN, 5, body, True)
            return struct.unpack(">h", answer[4:6])[0], None

        until_done("EndTxn", end)


main(*sys.argv[1:])
