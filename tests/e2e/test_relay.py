"""An HTTP upstream behind the gateway: the answer as it came, and honest failures."""

import asyncio
import json

import pytest

import sse
import upstream as up


def test_body_and_answer_pass_unchanged(relay, upstream):
    """A2."""
    body = '{"model": "scripted", "messages": [{"role": "user", "content": "x"}], "big": 12345678901234567890123, "vendor": {"b": 1.0, "a": null}}'
    answer = relay.http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "one two three"
    sent = upstream.questions[-1]
    assert sent["big"] == 12345678901234567890123
    assert json.dumps(sent["vendor"]) == '{"b": 1.0, "a": null}'


def test_a_stream_with_and_without_usage(relay):
    """S7: the usage event only for those who asked."""
    with relay.stream("with", model="scripted", stream_options={"include_usage": True}) as stream:
        events = stream.all()
    assert sse.text(events) == "one two three" and events[-2]["choices"] == [] and events[-2]["usage"]["total_tokens"] == 3
    with relay.stream("without", model="scripted") as stream:
        events = stream.all()
    assert sse.text(events) == "one two three" and all(event["choices"] for event in events[:-1])


@pytest.mark.parametrize("stream", [False, True])
def test_a_truncated_answer_is_no_success(relay, upstream, stream):
    """S3, S5."""

    async def cut(body, writer):
        if body.get("stream"):
            writer.write(up.HEAD_STREAM.encode() + up.event(up.chunk({"content": "one"})))
        else:
            writer.write(up.completion("one two three")[:-20])
        await writer.drain()
        writer.close()

    upstream.answer = cut
    if stream:
        with relay.stream("x", model="scripted") as opened:
            events = opened.all()
        assert sse.text(events) == "one"
        assert sse.error(events) is not None and sse.finish(events) == [] and events[-1] == "[DONE]"
        assert upstream.url.removeprefix("http://") not in str(sse.error(events))
    else:
        answer = relay.chat("x", model="scripted")
        assert answer.status_code == 502 and answer.json()["error"]["message"]


def test_the_status_of_an_early_failure_is_true(relay, upstream):
    """S6."""

    async def busy(body, writer):
        text = '{"error": {"message": "slow down", "type": "rate_limit", "param": null, "code": "busy"}}'
        writer.write(f"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())

    upstream.answer = busy
    answer = relay.chat("x", model="scripted", stream=True)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "7"
    assert answer.json()["error"]["message"] == "slow down"


def test_no_upstream_is_a_502_or_503(tmp_path):
    from gateway import Gateway
    from places import free_port

    arguments = ("--upstream", f"http://127.0.0.1:{free_port()}")
    with Gateway(*arguments, folder=tmp_path, ready_within=None) as gateway:
        answer = gateway.chat("x", model="scripted", stream=True)
        assert answer.status_code in (502, 503), answer.text
        assert answer.json()["error"]["message"]
        assert gateway.alive


def test_a_client_that_leaves_closes_the_upstream(relay, upstream):
    """D1: within a second, also while nothing comes."""
    gone = asyncio.Event()

    async def silent(body, writer):
        writer.write(up.HEAD_STREAM.encode() + up.event(up.chunk({"content": "one"})))
        await writer.drain()
        transport = writer.transport
        while not transport.is_closing():
            writer.write(b"")
            await asyncio.sleep(0.02)
            if transport.get_protocol()._stream_reader.at_eof():
                break
        gone.set()

    upstream.answer = silent
    with relay.stream("x", model="scripted") as stream:
        next(stream.events())
    asyncio.run_coroutine_threadsafe(asyncio.wait_for(gone.wait(), 2), upstream.loop).result(5)
