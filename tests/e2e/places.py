"""Where the tests find what they run, and free ports for it."""

import os
import pathlib
import socket

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _path(variable: str, default: pathlib.Path) -> pathlib.Path:
    path = pathlib.Path(os.environ.get(variable) or default)
    if not path.exists():
        raise SystemExit(f"{variable}: {path} does not exist; run the tests through `make test` or `make e2e`")
    return path


BIN = _path("INFERGW_BIN", ROOT / "target" / "debug" / "infergw")
DEMO_MODEL = _path("INFERGW_DEMO_MODEL", ROOT / ".demo" / "smollm2-135m.gguf")
PYENGINE = _path("INFERGW_PYENGINE", ROOT / "tests" / "pyengine" / "pyengine.py")
PYENGINE_PYTHON = _path("INFERGW_PYENGINE_PYTHON", ROOT / ".venv" / "bin" / "python")
MODEL = "smollm2-135m"

_next = 20_000 + os.getpid() * 7 % 10_000


def free_port() -> int:
    """A port that nobody listens on, below the range that the kernel gives to clients, so that it stays free."""
    global _next
    for _ in range(1000):
        _next = 20_000 + (_next - 20_000 + 1) % 10_000
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", _next))
                return _next
            except OSError:
                continue
    raise RuntimeError("no free port")
