"""The memory promises of the README, on the build under test (debug by default; a release build needs less)."""

import asyncio
import json

import upstream as up
from gateway import question

STREAMS = 1000


def test_an_idle_gateway_is_small(relay):
    assert relay.chat("warm up", model="scripted").status_code == 200
    assert relay.rss() < 30 << 20, f"{relay.rss() >> 20} MiB"


def test_a_thousand_open_streams(relay, upstream):
    async def held(body, writer):
        writer.write(up.HEAD_STREAM.encode() + up.event(up.chunk({"role": "assistant", "content": "one"})))
        await writer.drain()
        await asyncio.Event().wait()

    upstream.answer = held
    host, port = relay.url.removeprefix("http://").split(":")

    async def open_one(number):
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(question(f"stream {number}", model="scripted", stream=True)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        first = await asyncio.wait_for(reader.readuntil(b"\n\n"), 60)
        assert b" 200 " in first.split(b"\r\n")[0], first
        return writer

    async def measure():
        before = relay.rss()
        opened = []
        for start in range(0, STREAMS, 50):
            opened += await asyncio.gather(*(open_one(number) for number in range(start, start + 50)))
        each = (relay.rss() - before) / STREAMS
        for writer in opened:
            writer.close()
        return each

    each = asyncio.run(measure())
    assert len(upstream.questions) == STREAMS, "no two of them shared"
    assert each < 64 << 10, f"{each / 1024:.0f} KiB a stream"
    assert relay.alive and relay.http.get("/healthz").status_code == 200
