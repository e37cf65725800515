"""Admission with the real binary: tokens of engines are booked exactly, and a tenant's limit is its own."""

import asyncio
import threading

import upstream as up
from engines import PyEngine
from gateway import Gateway
from places import DEMO_MODEL, MODEL, free_port
from process import wait_for

SETTINGS = """
[admission]
tenant_tokens_per_minute = 1000000
"""


def booked(gateway) -> tuple[int, int]:
    wait_for("all has ended", lambda: gateway.metric("infergw_admission_running") == 0, 10)
    return tuple(int(gateway.metric("infergw_tenant_tokens_total", kind=kind)) for kind in ("prompt", "generated"))


def test_tokens_of_engines_are_booked_exactly(tmp_path):
    file = tmp_path / "infergw.toml"
    file.write_text(SETTINGS)
    handshake = f"tcp://127.0.0.1:{free_port()}"
    arguments = ("--config", file, "--engines", handshake, "--model", MODEL, "--tokenizer", DEMO_MODEL)
    with Gateway(*arguments, folder=tmp_path, ready_within=None) as gateway:
        with PyEngine(handshake, "--echo", "--eos", "2", "--max-model-len", "2048", folder=tmp_path):
            gateway.wait_ready(60)
            prompt = generated = 0
            for fields in ({}, {"n": 3}, {"max_tokens": 2}, {"stop": ["world"]}):
                usage = gateway.chat("Hello, wörld! Stop at world, or later.", **fields).json()["usage"]
                prompt, generated = prompt + usage["prompt_tokens"], generated + usage["completion_tokens"]
                assert booked(gateway) == (prompt, generated), fields
            # A stream says nothing of its usage, and is booked all the same.
            before = booked(gateway)
            with gateway.stream("Hello, wörld! Stop at world, or later.") as stream:
                list(stream.events())
            usage = gateway.chat("Hello, wörld! Stop at world, or later.").json()["usage"]
            expected = (before[0] + 2 * usage["prompt_tokens"], before[1] + 2 * usage["completion_tokens"])
            assert booked(gateway) == expected
            # What never came to the engine costs nothing.
            assert gateway.chat("x", temperature=99).status_code == 400
            assert booked(gateway) == expected


def test_a_tenant_at_its_limit_does_not_keep_the_other_out(upstream, tmp_path):
    go_on = asyncio.Event()

    async def held(body, writer):
        if body["messages"][0]["content"].startswith("held"):
            await go_on.wait()
        await up.plain(body, writer)

    upstream.answer = held
    file = tmp_path / "infergw.toml"
    file.write_text(
        f'[[backends]]\nurl = "{upstream.url}"\n[[keys]]\nkey = "sk-a"\ntenant = "a"\n[[keys]]\nkey = "sk-b"\ntenant = "b"\n'
        '[[tenants]]\nname = "a"\nconcurrency = 1\nqueue = 0\n'
    )
    with Gateway("--config", file, folder=tmp_path) as gateway:
        def ask(key: str, content: str):
            body = {"model": "scripted", "messages": [{"role": "user", "content": content}]}
            return gateway.http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})

        first = []
        thread = threading.Thread(target=lambda: first.append(ask("sk-a", "held")))
        thread.start()
        wait_for("it runs", lambda: upstream.questions, 10)
        refused = ask("sk-a", "second")
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "tenant_queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        assert ask("sk-b", "other").status_code == 200
        upstream.loop.call_soon_threadsafe(go_on.set)
        thread.join()
        assert first[0].status_code == 200
        wait_for("the place is free", lambda: ask("sk-a", "third").status_code == 200, 10)
