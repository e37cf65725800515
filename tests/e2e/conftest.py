"""Fixtures of the end-to-end tests: gateways in front of the real model, of TokenSpeed's own sockets, of a scripted server.

`make test` and `make e2e` set the environment; every path is read in `places.py`.
"""

import resource

import pytest

from engines import PyEngine
from gateway import Gateway
from places import DEMO_MODEL, MODEL, free_port
from upstream import Upstream

# The tests with a thousand streams need two thousand sockets here, and as many in the gateway, which inherits the limit.
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """A gateway with the real model in its own process."""
    with Gateway("--demo", DEMO_MODEL, folder=tmp_path_factory.mktemp("demo"), ready_within=120) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def echo(tmp_path_factory):
    """A gateway over TokenSpeed's own sockets; the answer to a prompt is the prompt."""
    folder = tmp_path_factory.mktemp("echo")
    handshake = f"tcp://127.0.0.1:{free_port()}"
    arguments = ("--engines", handshake, "--model", MODEL, "--tokenizer", DEMO_MODEL)
    with Gateway(*arguments, folder=folder, ready_within=None) as gateway:
        with PyEngine(handshake, "--echo", "--eos", "2", "--max-model-len", "2048", folder=folder):
            gateway.wait_ready(60)
            yield gateway


@pytest.fixture
def upstream():
    """A scripted OpenAI-compatible server."""
    with Upstream() as server:
        yield server


@pytest.fixture
def relay(upstream, tmp_path):
    """A gateway in front of the scripted server."""
    with Gateway("--upstream", upstream.url, folder=tmp_path) as gateway:
        yield gateway
