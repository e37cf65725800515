"""The engine path: `infergw engine --simulate` behind infergw, and behind smg, which speaks the same wire."""

import contextlib
import os
import pathlib
import tempfile

import peers
import targets

# Fast enough that the engine is not what is measured: the cost model of `infergw engine --simulate`.
SIMULATE = os.environ.get("BENCH_SIMULATE", "")
TOKENIZER = os.environ.get("INFERGW_DEMO_MODEL", str(targets.ROOT / ".demo" / "smollm2-135m.gguf"))


@contextlib.contextmanager
def rank(handshake: str):
    command = [targets.built("infergw"), "engine", "--handshake", handshake, "--index", "0", "--simulate"]
    with targets.process(*command, *([SIMULATE] if SIMULATE else [])):
        yield


@contextlib.contextmanager
def infergw():
    """Gives its address, the model's name, and the process whose CPU time counts."""
    port = targets.free_port()
    with tempfile.TemporaryDirectory() as folder:
        handshake = f"ipc://{folder}/group"
        arguments = ("--engines", handshake, "--model", "simulated", "--tokenizer", TOKENIZER)
        command = (targets.built("infergw"), "serve", "--listen", f"127.0.0.1:{port}", *arguments)
        with targets.process(*command, folder=folder) as child, rank(handshake):
            targets.wait_ready(f"http://127.0.0.1:{port}/readyz", child)
            yield f"http://127.0.0.1:{port}", "simulated", child.pid


@contextlib.contextmanager
def smg():
    """The same for smg in its ZMQ mode. It derives its handshake port from the path of its sockets."""
    port, admin = targets.free_port(), targets.free_port()
    model = peers.model_folder(TOKENIZER)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        sockets = str(pathlib.Path(folder) / "rank")
        command = [*peers.smg(), "launch", "--backend", "tokenspeed", "--worker-urls", f"ipc://{sockets}", "--model-path", model,
                   "--policy", "round_robin", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(admin),
                   "--prometheus-host", "127.0.0.1", "--log-level", "warn", "--disable-circuit-breaker",
                   "--max-concurrent-requests", "4096"]
        with targets.process(*command, folder=folder) as child, rank(f"tcp://127.0.0.1:{derived_port(sockets)}"):
            targets.wait_ready(f"http://127.0.0.1:{port}/readiness", child)
            yield f"http://127.0.0.1:{port}", model, child.pid


def derived_port(path: str) -> int:
    """Where smg awaits the engine of `ipc://path`: FNV-1a of the path, in the ports from 20000 (its documentation)."""
    digest = 0xCBF29CE484222325
    for byte in path.encode():
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return 20_000 + digest % 10_000


def available() -> dict:
    found = {"infergw": infergw}
    if peers.smg():
        found["smg"] = smg
    return found
