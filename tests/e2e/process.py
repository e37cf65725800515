"""A child process whose output is kept, and waiting for states with a deadline."""

import os
import pathlib
import signal
import subprocess
import time

_count = 0


def wait_for(what: str, condition, within: float, every: float = 0.02):
    """Polls `condition` until it gives something true, which is returned; fails with `what` after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(every)


class Process:
    """Started on entry, killed on exit; its output goes to a file in `folder`."""

    def __init__(self, *command, folder: pathlib.Path, name: str):
        global _count
        _count += 1
        self.command = [str(part) for part in command]
        self.folder = folder
        self.log_file = folder / f"{name}-{_count}.log"

    def __enter__(self):
        # Settings of the test run must not reach the process as settings of its own.
        env = {key: value for key, value in os.environ.items() if not key.startswith("INFERGW_")}
        with self.log_file.open("ab") as log:
            self.child = subprocess.Popen(self.command, cwd=self.folder, env=env, stdout=log, stderr=log)
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    def kill(self):
        """SIGKILL: no goodbye."""
        self.child.kill()
        self.child.wait()

    def terminate(self):
        self.child.send_signal(signal.SIGTERM)

    def exit_code(self, within: float) -> int:
        return self.child.wait(within)

    def rss(self) -> int:
        """Resident memory, in bytes."""
        status = pathlib.Path(f"/proc/{self.child.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024
