"""M4: out of file descriptors the gateway lives, does not spin, and accepts again. R2: a backend that hangs does not slow the others."""

import concurrent.futures
import contextlib
import os
import pathlib
import resource
import signal
import socket
import sys
import time

import httpx
import pytest

from gateway import Gateway, question
from process import Process, wait_for

HERE = pathlib.Path(__file__).parent


def descriptors(process) -> int:
    return len(os.listdir(f"/proc/{process.child.pid}/fd"))


def processor_seconds(process) -> float:
    fields = pathlib.Path(f"/proc/{process.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_out_of_descriptors(relay):
    assert relay.chat("before", model="scripted").status_code == 200
    limit = descriptors(relay) + 10
    hard = resource.prlimit(relay.child.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(relay.child.pid, resource.RLIMIT_NOFILE, (limit, hard))
    address = tuple(relay.url.removeprefix("http://").split(":"))
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            # The kernel takes them all; the gateway can accept ten.
            client = stack.enter_context(socket.create_connection(address, timeout=10))
            client.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        wait_for("accepting fails", lambda: "cannot accept a connection" in relay.log, 10)
        assert descriptors(relay) <= limit
        # A connection that is there is served, the upstream's too. Were it gone, this one could only be refused cleanly.
        assert relay.chat("during", model="scripted").status_code in (200, 502)
        lines, used = relay.log.count("cannot accept"), processor_seconds(relay)
        time.sleep(1)  # a time to measure in, not to wait for something
        assert processor_seconds(relay) - used < 0.3
        assert relay.log.count("cannot accept") - lines <= 25
        assert relay.alive
    with httpx.Client(base_url=relay.url, timeout=10) as fresh:
        assert fresh.get("/healthz").status_code == 200
        for number in range(20):
            answer = fresh.post("/v1/chat/completions", json=question(f"after {number}") | {"model": "scripted"})
            assert answer.status_code == 200


class Backend(Process):
    """The scripted server as a process."""

    def __init__(self, folder, name):
        super().__init__(sys.executable, HERE / "upstream.py", folder=folder, name=name)

    def __enter__(self):
        super().__enter__()
        self.url = wait_for("the backend's address", lambda: self.log.strip(), 30)
        return self


@pytest.fixture
def two(tmp_path):
    """A gateway in front of two backends, in turn."""
    with Backend(tmp_path, "steady") as steady, Backend(tmp_path, "hung") as hung:
        (tmp_path / "infergw.toml").write_text(
            '[timeouts]\nhead = "1s"\nconnect = "1s"\n[routing]\npolicy = "round_robin"\n[breaker]\npause = "300ms"\n'
            f'[[backends]]\nname = "steady"\nurl = "{steady.url}"\nmodels = ["scripted"]\n'
            f'[[backends]]\nname = "hung"\nurl = "{hung.url}"\nmodels = ["scripted"]\n'
        )
        with Gateway(folder=tmp_path) as gateway:
            yield gateway, hung


def test_a_stopped_backend_does_not_slow_the_others(two):
    gateway, hung = two
    ran = lambda backend, outcome: gateway.metric("infergw_backend_requests_total", backend=backend, outcome=outcome)

    def ask(number: int) -> tuple[httpx.Response, float]:
        began = time.monotonic()
        answer = httpx.post(
            f"{gateway.url}/v1/chat/completions", json=question(f"{number}", stream=True) | {"model": "scripted"}, timeout=30
        )
        return answer, time.monotonic() - began

    wait_for("both answer", lambda: ask(0)[0].headers["x-infergw-backend"] == "hung", 10)
    hung.child.send_signal(signal.SIGSTOP)
    try:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, range(1, 17)))
        stopped = [(answer, took) for answer, took in answers if answer.status_code != 200]
        assert stopped, "some went to the one that hangs"
        for answer, took in stopped:
            # Head and connect together: after a time-out nothing is tried elsewhere (R4).
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeouts.head"), answer.text
            assert took < 10
        for answer, took in answers:
            if answer.status_code == 200:
                assert answer.headers["x-infergw-backend"] == "steady" and answer.text.endswith("data: [DONE]\n\n")
                assert took < 1.5, "it waited for the other one"
        # It is taken out: nobody waits for it any more.
        gone = lambda: all(answer.status_code == 200 and took < 1.5 for answer, took in map(ask, range(100, 110)))
        wait_for("it is taken out", gone, 30)
        assert gateway.ready()
    finally:
        hung.child.send_signal(signal.SIGCONT)
    before = ran("hung", "ok")
    wait_for("it is taken back", lambda: ask(200)[0].status_code == 200 and ran("hung", "ok") > before, 60, every=0.1)
