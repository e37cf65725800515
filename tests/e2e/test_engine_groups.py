"""The life of an engine group, as operators see it: in /readyz, /metrics and /admin/engines."""

import httpx

from engines import PyEngine
from gateway import Gateway
from places import DEMO_MODEL, MODEL, free_port
from process import wait_for

LIVES = {"waiting", "ready", "degraded", "lost", "returning"}


def group(name: str, handshake: str, extra: str) -> str:
    return f'[[engines]]\nname = "{name}"\nhandshake = "{handshake}"\nmodel = "{MODEL}"\ntokenizer = "{DEMO_MODEL}"\n{extra}\n'


def test_a_group_loses_its_ranks_and_they_return(tmp_path):
    handshake, admin = f"tcp://127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    file = tmp_path / "infergw.toml"
    file.write_text(group("replicas", handshake, 'ranks = 2\nrank_loss = "rank"\nweight = 3.0'))

    def rank(index: int) -> PyEngine:
        arguments = ("--index", str(index), "--dp-size", "2", "--echo", "--eos", "2", "--max-model-len", "2048")
        return PyEngine(handshake, *arguments, folder=tmp_path)

    with Gateway("--config", file, "--admin", admin, folder=tmp_path, ready_within=None) as gateway:
        with httpx.Client(base_url=f"http://{admin}", timeout=30) as http:
            def seen() -> dict:
                (only,) = http.get("/admin/engines").json()["engines"]
                return only

            def life() -> str:
                only, told = seen(), gateway.http.get("/readyz").json()["engines"]
                lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith("infergw_engine_group_life{")]
                on = [line for line in lines if line.endswith(" 1")]
                assert len(lines) == len(LIVES) and len(on) <= 1, lines
                agreed = on and f'life="{only["life"]}"' in on[0] and told[0]["life"] == only["life"]
                return only["life"] if agreed else ""

            wait_for("it is waited for", lambda: life() == "waiting", 10)
            assert gateway.http.get("/readyz").status_code == 503
            first, second = rank(0), rank(1)
            with first, second:
                wait_for("it is ready", lambda: life() == "ready", 60)
                only = seen()
                assert (only["name"], only["serving"], only["handshake"]) == ("replicas", True, handshake)
                assert [rank["status"] for rank in only["ranks"]] == ["ready", "ready"]
                assert all(rank["max_model_len"] == 2048 and rank["version"] for rank in only["ranks"])
                assert gateway.chat("hi").headers["x-infergw-backend"] == "replicas"
                (backend,) = http.get("/admin/backends").json()["backends"]
                assert (backend["kind"], backend["weight"], backend["origin"]) == ("engine", 3.0, "engines")
                second.kill()
                wait_for("it is degraded", lambda: life() == "degraded", 10)
                only = seen()
                assert only["serving"] and "engine 1" in only["reason"]
                assert [rank["status"] for rank in only["ranks"]] == ["ready", "lost"]
                wait_for("its loss is counted", lambda: seen()["ranks"][1]["losses"] == 1, 5)
                ready = gateway.http.get("/readyz")
                assert ready.status_code == 200 and "engine 1" in ready.json()["engines"][0]["reason"]
                for n in range(4):
                    assert gateway.chat(f"hi {n}").status_code == 200
                first.kill()
                wait_for("it is lost", lambda: life() == "lost", 10)
                assert gateway.http.get("/readyz").status_code == 503
            with rank(0), rank(1):
                wait_for("it is ready again", lambda: life() == "ready", 60)
                assert gateway.chat("hi again").status_code == 200
                wait_for("their return is counted", lambda: all(rank["returns"] == 2 for rank in seen()["ranks"]), 5)
            # Groups can be drained, but not deleted: their sockets are bound for the gateway's life.
            assert http.post("/admin/backends/replicas/drain").json()["state"] == "draining"
            assert http.delete("/admin/backends/replicas").json()["error"]["code"] == "engine_group"
            for line in ("engine group serves", "engine group does not serve"):
                wait_for("the log has it", lambda: line in gateway.log, 5)
