"""What the generator can be pointed at: each target starts in front of an upstream and says where it listens."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent


def built(name: str) -> str:
    """The release binary `name`; INFERGW_BIN names another gateway."""
    if name == "infergw" and os.environ.get("INFERGW_BIN"):
        return os.environ["INFERGW_BIN"]
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    folder = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)["target_directory"]
    path = pathlib.Path(folder) / "release" / name
    if not path.exists():
        raise SystemExit(f"{path} is missing: run `make bench`, or cargo build --release -p infergw -p infergw-bench")
    return str(path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def process(*command: str, folder: str | None = None):
    """A child whose output is kept in a file that is shown if it does not get ready."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("INFERGW_")}
    with tempfile.NamedTemporaryFile("w+") as log:
        # In a group of its own, which ends with it: nginx's workers and smg's router would outlive the process that starts them.
        child = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            yield child
        except Unready as error:
            log.seek(0)
            raise SystemExit(f"{' '.join(command)}: {error}\n{log.read()[-3000:]}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


class Unready(Exception):
    pass


def wait_ready(url: str, child: subprocess.Popen, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and child.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise Unready(f"{url} did not get ready")


@contextlib.contextmanager
def mock(**script):
    """The mock upstream; gives its address."""
    flags = [part for name, value in script.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    port = free_port()
    with process(built("infergw-bench"), "mock", "--listen", f"127.0.0.1:{port}", *flags) as child:
        wait_ready(f"http://127.0.0.1:{port}/v1/models", child)
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def direct(upstream: str):
    yield upstream


@contextlib.contextmanager
def infergw(upstream: str):
    with gateway("--upstream", upstream) as url:
        yield url


@contextlib.contextmanager
def gateway(*arguments: str):
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = (built("infergw"), "serve", "--listen", f"127.0.0.1:{port}", *arguments)
        with process(*command, folder=folder) as child:
            wait_ready(f"http://127.0.0.1:{port}/readyz", child)
            yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def nginx(upstream: str):
    """nginx as a plain reverse proxy with kept-alive upstream connections and no buffering of answers."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "nginx.conf"
        config.write_text(f"""
            daemon off; worker_processes 1; pid {folder}/pid; error_log stderr warn;
            events {{ worker_connections 4096; }}
            http {{
                access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
                uwsgi_temp_path {folder}; scgi_temp_path {folder}; keepalive_requests 10000000;
                upstream up {{ server {upstream.removeprefix("http://")}; keepalive 256; keepalive_requests 10000000; }}
                server {{
                    listen 127.0.0.1:{port};
                    location / {{ proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
                }}
            }}""")
        with process("nginx", "-c", str(config)) as child:
            wait_ready(f"http://127.0.0.1:{port}/v1/models", child)
            yield f"http://127.0.0.1:{port}"


def available() -> dict:
    """The targets that can run here, `direct` first: the others are compared with it."""
    found = {"direct": direct, "infergw": infergw}
    if shutil.which("nginx"):
        found["nginx"] = nginx
    return found
