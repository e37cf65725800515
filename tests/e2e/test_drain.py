"""R7: SIGTERM lets running streams finish and exits with 0."""

import asyncio

import sse
import upstream as up
from gateway import Gateway


def test_a_running_stream_finishes(upstream, tmp_path):
    go_on = asyncio.Event()

    async def held(body, writer):
        writer.write(up.HEAD_STREAM.encode() + up.event(up.chunk({"role": "assistant", "content": "one"})))
        await writer.drain()
        await go_on.wait()
        writer.write(up.event(up.chunk({"content": " two"})) + up.event(up.chunk({}, "stop")) + up.event("[DONE]") + up.END)

    upstream.answer = held
    with Gateway("--upstream", upstream.url, "--drain-pause", "1s", folder=tmp_path) as gateway:
        with gateway.stream("x", model="scripted") as stream:
            events = stream.events()
            seen = [next(events)]
            gateway.terminate()
            gateway.wait_unready(1)
            assert gateway.http.get("/healthz").status_code == 200
            upstream.loop.call_soon_threadsafe(go_on.set)
            seen += list(events)
        assert sse.text(seen) == "one two"
        assert sse.finish(seen) == ["stop"] and seen[-1] == "[DONE]"
        assert gateway.exit_code(20) == 0


def test_an_overlong_stream_is_cut_with_an_error(upstream, tmp_path):
    async def endless(body, writer):
        writer.write(up.HEAD_STREAM.encode())
        while True:
            writer.write(up.event(up.chunk({"content": "x"})))
            await writer.drain()
            await asyncio.sleep(0.05)

    upstream.answer = endless
    arguments = ("--upstream", upstream.url, "--drain-pause", "100ms", "--drain-limit", "1s")
    with Gateway(*arguments, folder=tmp_path) as gateway:
        with gateway.stream("x", model="scripted") as stream:
            events = stream.events()
            seen = [next(events)]
            gateway.terminate()
            seen += list(events)
        assert sse.error(seen) is not None and seen[-1] == "[DONE]"
        assert gateway.exit_code(20) == 0


def test_an_idle_gateway_exits_soon(upstream, tmp_path):
    with Gateway("--upstream", upstream.url, "--drain-pause", "100ms", folder=tmp_path) as gateway:
        gateway.terminate()
        assert gateway.exit_code(10) == 0


def test_a_second_signal_exits_at_once(upstream, tmp_path):
    with Gateway("--upstream", upstream.url, "--drain-pause", "60s", folder=tmp_path) as gateway:
        gateway.terminate()
        gateway.wait_unready(2)
        gateway.terminate()
        gateway.exit_code(5)
