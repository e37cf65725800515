"""Bad input gets an answer in the one error shape, touches no engine, and the process lives."""

import json
import socket

import pytest

from gateway import question


def refused(response, status: int, param: str | None = None, code: str | None = None) -> dict:
    """A4: the status, the shape, and the named fields."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    if param:
        assert error["param"] == param, error
    if code:
        assert error["code"] == code, error
    return error


def post(gateway, body: bytes):
    return gateway.http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})


@pytest.fixture(autouse=True)
def lives(echo):
    yield
    assert echo.alive and echo.http.get("/healthz").status_code == 200
    assert echo.ready()


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"[]", b'"text"', b"{}", b'{"model":"smollm2-135m"}', b"\xff\xfe", b"null"])
def test_what_is_no_request(echo, body):
    refused(post(echo, body), 400)


@pytest.mark.parametrize("depth", [10_000, 1_000_000])
def test_deep_json(echo, depth):
    """X4."""
    nested = b"[" * depth + b"]" * depth
    refused(post(echo, nested), 400)
    refused(post(echo, b'{"model":"smollm2-135m","messages":' + nested + b"}"), 400)
    objects = b'{"a":' * depth + b"1" + b"}" * depth
    refused(post(echo, b'{"model":"smollm2-135m","messages":[{"role":"user","content":"x"}],"x":' + objects + b"}"), 400)


def test_an_oversize_body(echo):
    """X4: 413 whether the length is announced or not."""
    body = json.dumps(question("x" * (33 << 20))).encode()
    refused(post(echo, body), 413)

    def pieces():
        for start in range(0, len(body), 1 << 20):
            yield body[start : start + (1 << 20)]

    refused(echo.http.post("/v1/chat/completions", content=pieces(), headers={"content-type": "application/json"}), 413)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", "text"),
        ("messages", []),
        ("messages", [1]),
        ("messages", [{"role": 5, "content": "x"}]),
        ("max_tokens", "many"),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", 2**63),
        ("temperature", "hot"),
        ("temperature", 99),
        ("temperature", -1),
        ("top_p", 1.5),
        ("top_p", -0.1),
        ("n", 10**9),
        ("n", 0),
        ("top_logprobs", 2 * 10**9),
        ("presence_penalty", 10),
        ("frequency_penalty", -10),
        ("seed", "x"),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", 7),
        ("stream", "yes"),
        ("logit_bias", {str(token): 1 for token in range(10**6)}),
        ("logit_bias", {"x": 1}),
    ],
    ids=lambda value: str(value)[:24],
)
def test_silly_values(echo, field, value):
    """A6, U7: refused by name."""
    fields = {"top_logprobs": {"logprobs": True}}.get(field, {})
    body = {**question("x", max_tokens=5), **fields, field: value}
    error = refused(post(echo, json.dumps(body).encode()), 400)
    assert error["param"] is not None and error["param"].startswith(field), error


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "1e400", "-1e400", "9" * 5000])
def test_silly_numbers(echo, literal):
    body = json.dumps(question("x", max_tokens=5)).removesuffix("}") + f', "temperature": {literal}}}'
    refused(post(echo, body.encode()), 400)


def test_an_unknown_model(echo):
    refused(echo.http.post("/v1/chat/completions", json={**question("x"), "model": "gpt-17"}), 404, "model", "model_not_found")


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_a_prompt(echo, stream):
    """A5: both numbers, JSON also when a stream was asked for."""
    error = refused(echo.chat("word " * 5000, stream=stream), 400, code="context_length_exceeded")
    assert "2048" in error["message"] and sum(part.isdigit() for part in error["message"].replace(",", " ").split()) >= 1
    refused(echo.chat("short", max_tokens=4000, stream=stream), 400, code="context_length_exceeded")


def test_stream_options_without_stream(echo):
    """S7."""
    refused(echo.chat("x", stream_options={"include_usage": True}), 400)


def test_paths_and_methods(echo):
    refused(echo.http.get("/v1/no-such"), 404)
    refused(echo.http.get("/"), 404)
    answer = echo.http.get("/v1/chat/completions")
    refused(answer, 405)
    assert "POST" in answer.headers["allow"]
    refused(echo.http.post("/v1/models"), 405)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nbad header\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
)
def test_bytes_that_are_no_http(echo, head):
    host, port = echo.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as raw:
        raw.sendall(head)
        raw.shutdown(socket.SHUT_WR)
        answer = raw.recv(4096)
    assert answer == b"" or b" 400 " in answer.split(b"\r\n")[0] or b" 505 " in answer.split(b"\r\n")[0], answer
