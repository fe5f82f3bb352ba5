"""A producer with a ledger for keelmq audit: python acked_ledger.py NAMESRV TOPIC acked.jsonl < words"""

import asyncio
import json
import sys
import time
import zlib

from keelmq import Message, OsEnv, Producer, SendFailed, SendUnknown


def line(message, sent, begun_ms):
    """What the broker said of a message that is stored; what nothing was said of is no line."""
    return {
        "uniq_key": sent.msg_id,
        "topic": sent.queue.topic,
        "queue_id": sent.queue.queue_id,
        "queue_offset": sent.queue_offset,
        "phys_offset": int(sent.offset_msg_id[-16:], 16),
        "body_crc": zlib.crc32(message.body),  # of the body as sent, before compression
        "begun_ms": begun_ms,
        "acked_ms": time.monotonic() * 1000,
    }


async def main(namesrv, topic, ledger):
    async with Producer(OsEnv(), "ledger-example", namesrv) as producer:
        for body in sys.stdin.buffer.read().split():
            message, begun_ms = Message(topic=topic, body=body), time.monotonic() * 1000
            try:
                sent = await producer.send(message)
            except (SendFailed, SendUnknown) as error:
                sys.stderr.write(f"{error}\n")
            else:
                ledger.write(json.dumps(line(message, sent, begun_ms)) + "\n")
                ledger.flush()


namesrv, topic, path = sys.argv[1:]
with open(path, "a") as file:
    asyncio.run(main(namesrv, topic, file))
