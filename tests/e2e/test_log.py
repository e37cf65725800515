"""Whoever reads the log may stall or go away: requests neither wait for it nor fail by it (M4, R7)."""

import os
import subprocess

import httpx
import pytest

from places import BIN, free_port
from process import wait_for

# The lines of so many requests are several times what a pipe holds.
REQUESTS = 1000


@pytest.fixture
def piped(upstream, tmp_path):
    """A gateway whose standard error is a pipe, and the end of it that is read."""
    read, write = os.pipe()
    url = f"http://127.0.0.1:{free_port()}"
    command = [str(BIN), "serve", "--listen", url.removeprefix("http://"), "--upstream", upstream.url, "--drain-pause", "off"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("INFERGW_")}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=write) as child:
        os.close(write)
        try:
            with httpx.Client(base_url=url, timeout=10) as http:
                wait_for("the gateway is ready", lambda: ready(http), 30)
                yield http, read, child
        finally:
            child.kill()


def ready(http) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def answered(http) -> set[int]:
    # An unknown model is the cheapest request with a line in the log.
    return {http.post("/v1/chat/completions", json={"model": "none", "messages": []}).status_code for _ in range(REQUESTS)}


def test_nobody_reads_the_log(piped):
    http, read, child = piped
    try:
        assert answered(http) == {404}
        assert child.poll() is None
    finally:
        os.close(read)


def test_the_reader_of_the_log_is_gone(piped):
    http, read, child = piped
    os.close(read)
    assert answered(http) == {404}
    child.terminate()
    assert child.wait(10) == 0
