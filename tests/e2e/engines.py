"""Engine ranks as processes of their own."""

import pathlib

from places import BIN, PYENGINE, PYENGINE_PYTHON
from process import Process, wait_for


class PyEngine(Process):
    """A rank made of TokenSpeed's own Python sockets; see tests/pyengine."""

    def __init__(self, handshake: str, *arguments, folder: pathlib.Path):
        fixed = (PYENGINE_PYTHON, PYENGINE, "--handshake", handshake, "--die-with-parent")
        super().__init__(*fixed, *arguments, folder=folder, name="pyengine")

    def wait_aborts(self, number: int, within: float):
        wait_for(f"{number} aborts", lambda: self.log.count('"event": "abort"') >= number, within)
        assert self.log.count('"event": "abort"') == number, self.log


class ReferenceEngine(Process):
    """`infergw engine`: a rank with the real model, or a simulated one."""

    def __init__(self, handshake: str, *arguments, folder: pathlib.Path):
        fixed = (BIN, "engine", "--handshake", handshake, "--index", "0", "--dp-rank", "0", "--dp-size", "1")
        super().__init__(*fixed, *arguments, folder=folder, name="engine")
