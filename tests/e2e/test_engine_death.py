"""An engine that is killed in the middle of a stream: the stream ends with an error, the gateway lives, the engine may come back."""

import tempfile
import time

import pytest

import sse
from engines import PyEngine, ReferenceEngine
from gateway import Gateway
from places import DEMO_MODEL, MODEL, free_port

KINDS = {
    # Token k is the id k: text that means nothing, 20 ms apart.
    "pyengine": (PyEngine, ("--step-ms", "20")),
    "reference": (ReferenceEngine, ("--model", DEMO_MODEL)),
}


@pytest.fixture
def group(tmp_path):
    handshake = f"tcp://127.0.0.1:{free_port()}"
    arguments = ("--engines", handshake, "--model", MODEL, "--tokenizer", DEMO_MODEL)
    with Gateway(*arguments, folder=tmp_path, ready_within=None) as gateway:
        yield gateway, handshake


@pytest.mark.parametrize("kind", KINDS)
def test_kill_and_return(group, tmp_path, kind):
    gateway, handshake = group
    make, arguments = KINDS[kind]
    with make(handshake, *arguments, folder=tmp_path) as engine:
        gateway.wait_ready(90)
        with gateway.stream("Tell me a very long story.", max_tokens=1500, ignore_eos=True) as stream:
            events = stream.events()
            seen = [next(events) for _ in range(5)]
            engine.kill()
            killed = time.monotonic()
            seen += list(events)
            took = time.monotonic() - killed
        # S5, R3: what came, one error event, [DONE]; never an invented finish.
        assert sse.error(seen) is not None
        assert seen[-1] == "[DONE]" and "error" in seen[-2]
        assert sse.finish(seen) == []
        assert took < 3, f"the stream ended {took:.1f} s after the kill"
        assert "127.0.0.1" not in str(sse.error(seen)), "no address in a client's error"
        gateway.wait_unready(3)
        assert gateway.http.get("/healthz").status_code == 200
        refused = gateway.chat("Anybody there?", max_tokens=5)
        assert refused.status_code == 503 and "retry-after" in refused.headers
    with make(handshake, *arguments, folder=tmp_path):
        gateway.wait_ready(90)
        answer = gateway.chat("And now?", max_tokens=5)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 5 or answer.json()["choices"][0]["finish_reason"] == "stop"


def test_an_engine_that_says_goodbye(group, tmp_path):
    """SIGTERM makes the engine announce its death; the streams need not wait for silence."""
    gateway, handshake = group
    with PyEngine(handshake, "--step-ms", "20", folder=tmp_path) as engine:
        gateway.wait_ready(60)
        with gateway.stream("Story.", max_tokens=1500, ignore_eos=True) as stream:
            events = stream.events()
            seen = [next(events) for _ in range(3)]
            engine.terminate()
            seen += list(events)
        assert sse.error(seen) is not None and seen[-1] == "[DONE]"
        gateway.wait_unready(3)
    with PyEngine(handshake, folder=tmp_path):
        gateway.wait_ready(60)


def test_one_abort_when_the_client_leaves(group, tmp_path):
    """D1, D3."""
    gateway, handshake = group
    with PyEngine(handshake, "--step-ms", "20", folder=tmp_path) as engine:
        gateway.wait_ready(60)
        with gateway.stream("Story.", max_tokens=1500, ignore_eos=True) as stream:
            next(stream.events())
        engine.wait_aborts(1, 5)
        assert gateway.chat("Still there?", max_tokens=3, ignore_eos=True).status_code == 200


def test_a_follower_keeps_the_generation_alive(group, tmp_path):
    """C1: the leader leaves, the follower gets the whole answer; no abort."""
    gateway, handshake = group
    with PyEngine(handshake, "--step-ms", "20", folder=tmp_path) as engine:
        gateway.wait_ready(60)
        fields = {"max_tokens": 100, "ignore_eos": True}
        with gateway.stream("Shared.", **fields) as leader:
            # Kept: a generator that is collected closes its response.
            leading = leader.events()
            next(leading)
            with gateway.stream("Shared.", **fields) as follower:
                assert (leader.headers["x-infergw-coalesce"], follower.headers["x-infergw-coalesce"]) == ("leader", "follower")
                leader.response.close()
                events = follower.all()
        assert sse.finish(events) == ["length"] and events[-1] == "[DONE]"
        assert '"event": "abort"' not in engine.log


def test_a_group_over_ipc_dies_and_returns(tmp_path):
    """Sockets in a folder that only their owner can enter, instead of ports."""
    with tempfile.TemporaryDirectory() as folder:  # the paths of sockets are at most 107 bytes long
        handshake = f"ipc://{folder}/group"
        arguments = ("--engines", handshake, "--model", MODEL, "--tokenizer", DEMO_MODEL)
        with Gateway(*arguments, folder=tmp_path, ready_within=None) as gateway:
            for _ in range(2):
                with ReferenceEngine(handshake, "--simulate", folder=tmp_path) as engine:
                    gateway.wait_ready(30)
                    assert gateway.chat("Hello", max_tokens=5, ignore_eos=True).json()["usage"]["completion_tokens"] == 5
                    engine.kill()
                    gateway.wait_unready(3)
