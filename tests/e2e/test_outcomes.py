"""O1: how a request ended stands in the log and in the metrics, for each way that there is."""

import asyncio
import json
import re
import socket

import httpx
import pytest

import sse
from gateway import Gateway, question
from process import wait_for
from upstream import END, HEAD_STREAM, chunk, event, plain

KEY = {"authorization": "Bearer right"}


async def scripted(body: dict, writer) -> None:
    """What the question's text asks for."""
    text = body["messages"][0]["content"]
    if text == "error":
        writer.write(("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n").encode())
    elif text == "busy":
        writer.write(("HTTP/1.1 429 Slow\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n").encode())
    elif text == "truncated":
        writer.write(HEAD_STREAM.encode() + event(chunk({"content": "one"})) + END)
    elif text == "silent":
        writer.write(HEAD_STREAM.encode())
        await asyncio.sleep(60)
    elif text == "endless":
        writer.write(HEAD_STREAM.encode() + event(chunk({"content": "one"})))
        await asyncio.sleep(60)
    elif text == "paced":
        writer.write(HEAD_STREAM.encode())
        for word in range(8):
            writer.write(event(chunk({"content": f"w{word}"})))
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.write(event(chunk({}, "stop")) + event("[DONE]") + END)
    else:
        await plain(body, writer)


@pytest.fixture
def gateway(upstream, tmp_path):
    upstream.answer = scripted
    (tmp_path / "infergw.toml").write_text(
        '[log]\nformat = "json"\n[limits]\nmax_body = "64KiB"\n[breaker]\nfailures = 0\n[retries]\nmost = 0\n'
    )
    arguments = ("--upstream", upstream.url, "--api-key", "right", "--first-event-timeout", "300ms", "--drain-pause", "200ms")
    with Gateway(*arguments, folder=tmp_path) as gateway:
        gateway.http.headers.update(KEY)
        wait_for("the model is known", lambda: gateway.http.get("/v1/models").json()["data"], 10)
        yield gateway


def lines(gateway) -> list[dict]:
    """The records of requests in the log."""
    found = []
    for line in gateway.log.splitlines():
        if line.startswith("{"):
            fields = json.loads(line)["fields"]
            if fields.get("message") == "request":
                found.append(fields)
    return found


def expect(gateway, outcome: str, before: list[dict], endpoint="/v1/chat/completions", **fields) -> dict:
    """One new line in the log, and one more in the metrics, with this outcome."""
    new = wait_for("a line in the log", lambda: lines(gateway)[len(before) :], 10)
    assert len(new) == 1, new
    assert (new[0]["outcome"], new[0]["endpoint"]) == (outcome, endpoint), new
    assert {key: new[0][key] for key in fields} == fields
    total = sum(1 for line in lines(gateway) if (line["outcome"], line["endpoint"]) == (outcome, endpoint))
    assert gateway.metric("infergw_requests_total", outcome=outcome, endpoint=endpoint) == total
    return new[0]


def ask(gateway, text: str, stream=True, **headers) -> httpx.Response:
    body = question(text, stream=stream) | {"model": "scripted"}
    return gateway.http.post("/v1/chat/completions", json=body, headers=headers)


@pytest.mark.parametrize(
    "text,outcome,status",
    [
        ("plain", "ok", 200),
        ("error", "upstream_error", 500),
        ("truncated", "upstream_truncated", 200),
        ("silent", "timeout", 504),
        ("busy", "refused", 429),
    ],
)
def test_what_the_backend_makes_of_it(gateway, text, outcome, status):
    before = lines(gateway)
    assert ask(gateway, text).status_code == status
    expect(gateway, outcome, before, status=status, tenant="default", model="scripted")


def test_the_client_went_away(gateway):
    before = lines(gateway)
    body = question("endless", stream=True) | {"model": "scripted"}
    with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert b"one" in next(response.iter_raw())
    expect(gateway, "client_closed", before, status=200)


def test_what_the_gateway_refuses(gateway):
    chat = "/v1/chat/completions"

    def refused(status: int, endpoint: str, method: str, path: str, **more):
        before = lines(gateway)
        response = gateway.http.request(method, path, **more)
        assert response.status_code == status
        line = expect(gateway, "refused", before, endpoint=endpoint, status=status)
        assert line["request_id"] == response.headers["x-request-id"]

    refused(401, chat, "POST", chat, headers={"authorization": "Bearer wrong"})
    refused(401, "other", "GET", "/secret/path", headers={"authorization": "Bearer wrong"})
    refused(404, "other", "GET", "/secret/path")
    refused(404, "/v1/models", "GET", "/v1/models/none")
    refused(405, chat, "GET", chat)
    refused(400, chat, "POST", chat, content="{")
    refused(404, chat, "POST", chat, json=question("x") | {"model": "none"})
    refused(413, chat, "POST", chat, content=b" " * (65 << 10))
    assert "secret" not in gateway.log and "wrong" not in gateway.log
    assert "secret" not in gateway.http.get("/metrics").text


def test_while_it_drains(gateway):
    body = question("endless", stream=True) | {"model": "scripted"}
    # A stream that runs keeps the gateway from ending.
    with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
        pieces = response.iter_raw()
        next(pieces)
        gateway.terminate()
        answer = wait_for("503", lambda: (found := ask(gateway, "plain")).status_code == 503 and found, 10, every=0.1)
        assert answer.headers["retry-after"]
        refused = wait_for("a line", lambda: [line for line in lines(gateway) if line["status"] == 503], 10)[0]
    assert (refused["outcome"], refused["endpoint"]) == ("refused", "/v1/chat/completions")


@pytest.mark.parametrize("sent,status", [(b"no request\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000, 431)])
def test_what_is_no_request(gateway, sent, status):
    before = lines(gateway)
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        try:
            client.sendall(sent)
            assert client.recv(1000).split(b" ")[1] == str(status).encode()
        except ConnectionResetError:
            # It has closed with bytes unread.
            pass
    expect(gateway, "refused", before, endpoint="other", status=status)


def test_the_time_between_tokens(gateway):
    response = ask(gateway, "paced")
    assert sse.text([json.loads(data) for data in re.findall(r"data: (\{.*\})", response.text)]) == "w0w1w2w3w4w5w6w7"
    name = "infergw_inter_token_latency_seconds"
    wait_for("seven gaps", lambda: gateway.metric(f"{name}_count") == 7, 10)
    seconds = gateway.metric(f"{name}_sum")
    assert 7 * 0.05 <= seconds < 7 * 0.5
    # None of them is shorter than 32 ms, all are shorter than two seconds.
    assert gateway.metric(f"{name}_bucket", le="0.032") == 0
    assert gateway.metric(f"{name}_bucket", le="+Inf") == 7
    # TTFT is there beside it.
    assert gateway.metric("infergw_time_to_first_token_seconds_count") == 1
