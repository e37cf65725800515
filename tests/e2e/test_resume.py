"""Coming back to a stream of an engine: the gateway writes it, and numbers its events like those of a relay."""

import httpx
import pytest

from gateway import Gateway, question
from places import DEMO_MODEL
from process import wait_for

CONFIG = '[coalesce]\nresume = true\nlinger = "20s"\n'


@pytest.fixture(scope="module")
def resuming(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    (folder / "infergw.toml").write_text(CONFIG)
    with Gateway("--demo", DEMO_MODEL, folder=folder, ready_within=120) as gateway:
        yield gateway


def test_a_lost_stream_goes_on_where_it_was(resuming):
    body = question("Count to thirty.", stream=True, max_tokens=40, temperature=0)
    seen = b""
    with httpx.Client(base_url=resuming.url, timeout=60) as http:
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            stream = response.headers["x-infergw-stream"]
            for piece in response.iter_raw():
                seen += piece
                if b"-5\n\n" in seen:
                    break
    mark = f"id: {stream}-5\n\n".encode()
    seen = seen[: seen.index(mark) + len(mark)]
    # It runs on without a client, to its end.
    wait_for("the flight has ended", lambda: resuming.metric("infergw_flights") == 0, 60)
    rest = resuming.http.get(f"/v1/streams/{stream}", headers={"last-event-id": f"{stream}-5"})
    assert rest.headers["content-type"] == "text/event-stream"
    whole = resuming.http.get(f"/v1/streams/{stream}")
    assert seen + rest.content == whole.content
    events = whole.text.split("\n\n")[:-1]
    assert [event.split("\n")[-1] for event in events] == [f"id: {stream}-{number + 1}" for number in range(len(events))]
    assert events[-1].startswith("data: [DONE]\n")
    assert resuming.metric("infergw_engine_requests_total") == 1


def test_the_official_client_reads_events_with_ids(resuming):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=resuming.url + "/v1", api_key="none", max_retries=0)
    pieces = client.chat.completions.create(**question("Say hello.", stream=True, max_tokens=8, temperature=0))
    streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    whole = client.chat.completions.create(**question("Say hello.", max_tokens=8, temperature=0))
    assert streamed == whole.choices[0].message.content
