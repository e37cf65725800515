"""The official OpenAI client on `/v1/responses`, streaming and not: there is no state on the server."""

import openai
import pytest

from places import MODEL

EXACT = {"model": MODEL, "temperature": 0}


@pytest.fixture
def api(demo):
    return openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0, timeout=120)


def test_a_whole_response(api):
    response = api.responses.create(**EXACT, input="Name three colours.", instructions="Be brief.", max_output_tokens=20, metadata={"a": "b"})
    assert response.object == "response" and response.status in ("completed", "incomplete")
    assert response.output_text and response.output[0].role == "assistant"
    assert response.usage.input_tokens > 0 and response.usage.output_tokens > 0
    assert response.instructions == "Be brief." and response.metadata == {"a": "b"} and response.previous_response_id is None


def test_a_cut_response_is_incomplete(api):
    """A3."""
    response = api.responses.create(**EXACT, input="Name three colours.", max_output_tokens=2)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.output_tokens == 2


def test_a_stream_is_the_whole_response(api):
    # It ends by itself: the client's helper knows no other end of a stream than `response.completed`.
    asked = {**EXACT, "input": [{"role": "user", "content": "What is the capital of France?"}], "max_output_tokens": 200}
    whole = api.responses.create(**asked)
    assert whole.status == "completed"
    events = list(api.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[0].type == "response.created" and events[-1].response.output_text == whole.output_text
    with api.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == whole.output_text


def test_a_conversation_that_the_client_keeps(api):
    """A1: what came back goes up again as it is."""
    turns = [{"role": "user", "content": "Hi."}]
    first = api.responses.create(**EXACT, input=turns, max_output_tokens=10, store=False)
    turns += [item.model_dump(exclude_none=True) for item in first.output]
    turns.append({"role": "user", "content": [{"type": "input_text", "text": "And now?"}]})
    assert api.responses.create(**EXACT, input=turns, max_output_tokens=5).output_text


def test_errors_are_typed(api):
    """A4, A5, A6."""
    with pytest.raises(openai.BadRequestError) as state:
        api.responses.create(**EXACT, input="x", previous_response_id="resp_1")
    assert state.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as tools:
        api.responses.create(**EXACT, input="x", tools=[{"type": "web_search"}])
    assert tools.value.param == "tools[0].type"
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as long:
            api.responses.create(**EXACT, input="x", max_output_tokens=10**6, stream=stream)
        assert (long.value.param, long.value.code) == ("max_output_tokens", "context_length_exceeded")
    with pytest.raises(openai.NotFoundError):
        api.responses.create(model="no-such-model", input="x")
