"""What somebody sees who has just typed `make serve`: the README's examples, on the real model."""

import concurrent.futures
import re
import subprocess

import sse
from gateway import question
from process import wait_for

GENERATIONS = "infergw_engine_requests_total"


def test_a_question_is_answered_in_text(demo):
    answer = demo.chat("Name three colours.", max_tokens=40, temperature=0)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "smollm2-135m"
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert any(colour in choice["message"]["content"].lower() for colour in ("red", "blue", "green", "yellow", "purple"))
    assert choice["finish_reason"] in ("stop", "length")
    usage = body["usage"]
    assert 0 < usage["completion_tokens"] <= 40
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stream_says_the_same_as_a_whole_answer(demo):
    fields = {"max_tokens": 40, "temperature": 0}
    whole = demo.chat("Name three colours.", **fields).json()
    with demo.stream("Name three colours.", stream_options={"include_usage": True}, **fields) as stream:
        events = stream.all()
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["x-infergw-backend"] and stream.headers["x-infergw-reason"]
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == [] and events[-2]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert all(event["usage"] is None for event in events[:-2])
    assert sse.text(events) == whole["choices"][0]["message"]["content"]
    assert sse.finish(events) == [whole["choices"][0]["finish_reason"]]
    assert len({event["id"] for event in events[:-1]}) == 1


def test_the_capital_of_france_is_paris(demo):
    answer = demo.chat("What is the capital of France?", max_tokens=30, temperature=0).json()
    assert "Paris" in answer["choices"][0]["message"]["content"]


def at_once(gateway, contents: list[str], **fields):
    """Streams all of `contents` at once; gives each one's headers and raw bytes."""

    def one(content):
        with gateway.stream(content, **fields) as stream:
            stream.all()
            return stream.headers, stream.raw

    with concurrent.futures.ThreadPoolExecutor(len(contents)) as pool:
        return list(pool.map(one, contents))


def test_three_identical_streams_share_one_generation(demo):
    """C2, C7: byte-identical, one leader, two followers, one generation, and the log says which flight it was."""
    before = demo.metric(GENERATIONS)
    answers = at_once(demo, ["identical"] * 3, max_tokens=60)
    roles = sorted(headers["x-infergw-coalesce"] for headers, _ in answers)
    assert roles == ["follower", "follower", "leader"]
    assert len({raw for _, raw in answers}) == 1
    assert answers[0][1].endswith(b"data: [DONE]\n\n")
    ids = {headers["x-request-id"]: headers["x-infergw-coalesce"] for headers, _ in answers}
    assert len(ids) == 3
    assert demo.metric(GENERATIONS) - before == 1

    def flights():
        logged = re.findall(r'coalesce request_id=(\S+) key=([0-9a-f]{12}) role="(\w+)"$', demo.log, re.MULTILINE)
        return [key for id, key, role in logged if role == ids.get(id)]

    wait_for("three lines in the log", lambda: len(flights()) == 3, 5)
    assert len(set(flights())) == 1


def test_three_different_streams_are_three_generations(demo):
    before = demo.metric(GENERATIONS)
    answers = at_once(demo, ["first", "second", "third"], max_tokens=10)
    assert [headers["x-infergw-coalesce"] for headers, _ in answers] == ["leader"] * 3
    assert demo.metric(GENERATIONS) - before == 3


def test_curl_as_in_the_readme(demo):
    """The three commands of the README, by curl itself where it is installed; httpx elsewhere in this file speaks the same."""
    body = '{"model":"smollm2-135m","messages":[{"role":"user","content":"identical curl"}],"stream":true,"max_tokens":60}'
    command = f"""for i in 1 2 3; do
        curl -sN -D head.$i {demo.url}/v1/chat/completions -H 'content-type: application/json' -d '{body}' >body.$i &
    done; wait"""
    if subprocess.run(["which", "curl"], capture_output=True).returncode != 0:
        assert demo.http.post("/v1/chat/completions", json=question("identical curl", max_tokens=5)).status_code == 200
        return
    subprocess.run(["bash", "-c", command], cwd=demo.folder, check=True, timeout=120)
    bodies = {(demo.folder / f"body.{number}").read_bytes() for number in (1, 2, 3)}
    heads = [(demo.folder / f"head.{number}").read_text().lower() for number in (1, 2, 3)]
    assert len(bodies) == 1 and b"[DONE]" in bodies.pop()
    assert sum("x-infergw-coalesce: leader" in head for head in heads) == 1
    assert sum("x-infergw-coalesce: follower" in head for head in heads) == 2


def test_models_are_listed(demo):
    listed = demo.http.get("/v1/models").json()
    assert listed["object"] == "list"
    assert "smollm2-135m" in [model["id"] for model in listed["data"]]


def test_logprobs_cover_every_token(demo):
    """U9."""
    body = demo.chat("Say yes.", max_tokens=8, temperature=0, logprobs=True).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == body["usage"]["completion_tokens"]
    joined = b"".join(bytes(entry["bytes"]) for entry in entries).decode(errors="replace")
    assert joined.startswith(body["choices"][0]["message"]["content"][:5])


def test_a_seed_repeats_the_answer(demo):
    fields = {"max_tokens": 24, "temperature": 1.2, "seed": 7}
    texts = {demo.chat("Tell me a story.", **fields).json()["choices"][0]["message"]["content"] for _ in range(2)}
    assert len(texts) == 1


def test_a_stop_string_ends_the_answer(demo):
    """U4: the match does not leak."""
    whole = demo.chat("Count from one to ten.", max_tokens=40, temperature=0).json()["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2 :][:4]
    cut = demo.chat("Count from one to ten.", max_tokens=40, temperature=0, stop=stop).json()["choices"][0]
    assert cut["message"]["content"] == whole[: whole.index(stop)]
    assert cut["finish_reason"] == "stop"
