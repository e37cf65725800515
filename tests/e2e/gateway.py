"""The gateway as its users see it: a process, a port, HTTP."""

import contextlib
import pathlib
import re

import httpx

import sse
from places import BIN, MODEL, free_port
from process import Process, wait_for


class Gateway(Process):
    def __init__(self, *arguments, folder: pathlib.Path, ready_within: float | None = 30):
        self.url = f"http://127.0.0.1:{free_port()}"
        self.ready_within = ready_within
        super().__init__(BIN, "serve", "--listen", self.url.removeprefix("http://"), *arguments, folder=folder, name="gateway")

    def __enter__(self):
        super().__enter__()
        self.http = httpx.Client(base_url=self.url, timeout=120)
        try:
            wait_for("the gateway listens", self.listens, 30)
            if self.ready_within is not None:
                self.wait_ready(self.ready_within)
        except BaseException as error:
            self.__exit__()
            raise AssertionError(f"{error}; the gateway's log:\n{self.log[-4000:]}") from error
        return self

    def __exit__(self, *_):
        self.http.close()
        super().__exit__()

    def listens(self) -> bool:
        if not self.alive:
            raise AssertionError(f"the gateway exited with {self.child.returncode}")
        try:
            return self.http.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def ready(self) -> bool:
        return self.http.get("/readyz").status_code == 200

    def wait_ready(self, within: float):
        wait_for("/readyz is 200", self.ready, within)

    def wait_unready(self, within: float):
        wait_for("/readyz is 503", lambda: self.http.get("/readyz").status_code == 503, within)

    def chat(self, content: str, **fields) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=question(content, **fields))

    @contextlib.contextmanager
    def stream(self, content: str, **fields):
        """An open stream: `.response` and `.events()`, on a connection of its own."""
        body = question(content, stream=True, **fields)
        with httpx.Client(base_url=self.url, timeout=120) as http:
            with http.stream("POST", "/v1/chat/completions", json=body) as response:
                yield sse.Stream(response)

    def metric(self, name: str, **labels) -> float:
        """The sum of the samples of a metric whose labels include `labels`; 0 if there are none."""
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            match = re.fullmatch(r"([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)", line)
            if match and match[1] == name:
                found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                if labels.items() <= found.items():
                    total += float(match[3])
        return total


def question(content: str, **fields) -> dict:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}
