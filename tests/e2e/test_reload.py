"""SIGHUP: the configuration is read again by the real binary, under load, without a failed request."""

import asyncio
import contextlib
import pathlib
import signal
import threading

import httpx

import sse
import upstream as up
from gateway import Gateway, question
from places import free_port
from process import wait_for


def written(file: pathlib.Path, *servers: up.Upstream, extra: str = "") -> pathlib.Path:
    names = "abcdef"
    entries = [f'[[backends]]\nname = "{names[n]}"\nurl = "{server.url}"\n' for n, server in enumerate(servers) if server]
    file.write_text("\n".join(entries) + extra)
    return file


@contextlib.contextmanager
def configured(tmp_path, *servers):
    """A gateway of a file, and the address of its admin listener."""
    file = written(tmp_path / "infergw.toml", *servers)
    admin = f"127.0.0.1:{free_port()}"
    with Gateway("--config", file, "--admin", admin, folder=tmp_path) as gateway:
        with httpx.Client(base_url=f"http://{admin}", timeout=30) as http:
            yield gateway, file, http


def reloads(admin) -> int:
    counts = [line for line in admin.get("/metrics").text.splitlines() if line.startswith("infergw_config_reloads_total")]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in counts)


def hang_up(gateway, admin):
    before = reloads(admin)
    gateway.child.send_signal(signal.SIGHUP)
    wait_for("the configuration was read again", lambda: reloads(admin) > before, 10)


def names(admin) -> list[str]:
    return [backend["name"] for backend in admin.get("/admin/backends").json()["backends"]]


def test_reloads_under_load_fail_no_request(tmp_path):
    with up.Upstream() as a, up.Upstream() as b, configured(tmp_path, a) as (gateway, file, admin):
        stop, answers, failures = threading.Event(), [], []

        def client(number: int):
            with httpx.Client(base_url=gateway.url, timeout=60) as http:
                while not stop.is_set():
                    answer = http.post("/v1/chat/completions", json=question(f"{number} {len(answers)}", model="scripted", stream=True))
                    good = answer.status_code == 200 and answer.text.rstrip().endswith("data: [DONE]") and "three" in answer.text
                    (answers if good else failures).append(answer.text)

        threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for round in range(10):
            written(file, *((a, b), (None, b), (a, None))[round % 3])
            hang_up(gateway, admin)
            enough = len(answers) + 10
            wait_for("requests are answered", lambda: len(answers) >= enough or failures, 30)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]
        assert a.questions and b.questions


def test_a_bad_file_changes_nothing_and_the_log_names_line_and_suggestion(tmp_path):
    with up.Upstream() as a, configured(tmp_path, a) as (gateway, file, admin):
        file.write_text(f'[[backends]]\nname = "a"\nurl = "{a.url}"\nwieght = 2\n')
        hang_up(gateway, admin)
        expected = "infergw.toml:4: unknown key 'wieght'; did you mean 'weight'?"
        wait_for("the log has the line", lambda: expected in gateway.log, 5)
        last = admin.get("/admin/reload").json()["last"]
        assert last["outcome"] == "rejected" and expected in last["error"]
        assert names(admin) == ["a"]
        assert gateway.chat("x", model="scripted").status_code == 200


def test_a_removed_backend_finishes_its_stream(tmp_path):
    go_on = asyncio.Event()

    async def held(body, writer):
        writer.write(up.HEAD_STREAM.encode() + up.event(up.chunk({"role": "assistant", "content": "one"})))
        await writer.drain()
        await go_on.wait()
        writer.write(up.event(up.chunk({"content": " two"})) + up.event(up.chunk({}, "stop")) + up.event("[DONE]") + up.END)

    with up.Upstream() as a, up.Upstream() as b, configured(tmp_path, a) as (gateway, file, admin):
        a.answer = held
        with gateway.stream("x", model="scripted") as stream:
            events = stream.events()
            seen = [next(events)]
            written(file, None, b)
            hang_up(gateway, admin)
            states = {backend["name"]: backend["state"] for backend in admin.get("/admin/backends").json()["backends"]}
            assert states["a"] == "leaving" and "b" in states
            for n in range(5):
                assert gateway.chat(f"{n}", model="scripted").headers["x-infergw-backend"] == "b"
            a.loop.call_soon_threadsafe(go_on.set)
            seen += list(events)
        assert sse.text(seen) == "one two" and seen[-1] == "[DONE]"
        wait_for("a has left", lambda: names(admin) == ["b"], 5)
        assert len(a.questions) == 1


def test_what_needs_a_restart_is_named(tmp_path):
    with up.Upstream() as a, configured(tmp_path, a) as (gateway, file, admin):
        written(file, a, extra="[server]\nworkers = 7\n")
        hang_up(gateway, admin)
        told = "these settings stay as they are until a restart"
        wait_for("the log names it", lambda: any(told in line and "server.workers" in line for line in gateway.log.splitlines()), 5)
        assert gateway.chat("x", model="scripted").status_code == 200
