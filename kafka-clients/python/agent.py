"""Does with kafka-python what the test asks for: one JSON request per line, one answer per line."""

import json
import logging
import os
import re
import sys

import kafka.errors

from admins import Admins
from consumers import Consumers
from producers import Producers


def describe(failure):
    """Kafka's name for a failure."""
    # The client's names for its classes differ from Kafka's in places; the numbers do not.
    number = re.match(r"(?:KafkaError: )?\[Error (\d+)\]", str(failure))
    if number:
        known = kafka.errors.for_code(int(number[1]))
        name = NAMES.get(int(number[1]), known.message)
    else:
        name = "CLIENT:" + type(failure).__name__
    return {"error": name, "message": str(failure)}


# Where kafka-python's message is not Kafka's name.
NAMES = {
    1: "OFFSET_OUT_OF_RANGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    6: "NOT_LEADER_OR_FOLLOWER",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
    18: "RECORD_LIST_TOO_LARGE",
    37: "INVALID_PARTITIONS",
    40: "INVALID_CONFIG",
    68: "NON_EMPTY_GROUP",
    69: "GROUP_ID_NOT_FOUND",
    86: "GROUP_SUBSCRIBED_TO_TOPIC",
}


def main():
    # Nothing that a library prints may get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # Shown if the test fails.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    handlers = [Admins(), Producers(describe), Consumers()]
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"unsupported": request["op"]}
        try:
            for handler in handlers:
                action = getattr(handler, "op_" + request["op"], None)
                if action is not None:
                    result = action(request)
                    if result is not NotImplemented:
                        answer = {"ok": result}
        except Exception as failure:  # the test judges it
            answer = describe(failure)
        answers.write(json.dumps(answer) + "\n")
    # Clients that a test left open must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
