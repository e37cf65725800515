"""The official Anthropic client, on the model behind `/v1/messages`, streaming and not."""

import anthropic
import pytest

from places import MODEL


@pytest.fixture
def api(demo):
    return anthropic.Anthropic(base_url=demo.url, api_key="none", max_retries=0, timeout=120)


# The client of today has no names for sampling; the endpoint has.
EXACT = {"temperature": 0}


def user(content="Name three colours."):
    return [{"role": "user", "content": content}]


def test_a_whole_message(api):
    message = api.messages.create(model=MODEL, max_tokens=20, messages=user(), system="Be brief.", extra_body=EXACT)
    assert message.type == "message" and message.role == "assistant" and message.model == MODEL
    assert message.content[0].type == "text" and message.content[0].text
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens > 0 and message.usage.output_tokens > 0


def test_a_stream_is_the_whole_message(api):
    asked = {"model": MODEL, "max_tokens": 30, "messages": user(), "extra_body": EXACT}
    whole = api.messages.create(**asked)
    with api.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    events = [event.type for event in api.messages.create(**asked, stream=True)]
    assert events[0] == "message_start" and events[-2:] == ["message_delta", "message_stop"]


def test_a_stop_sequence_is_named(api):
    """U4."""
    asked = {"model": MODEL, "max_tokens": 40, "messages": user("Say: one two three four"), "extra_body": EXACT}
    text = api.messages.create(**asked).content[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 4]
    cut = api.messages.create(**asked, stop_sequences=[stop])
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop
    assert cut.content[0].text == text.split(stop)[0]


def test_a_conversation_and_a_prefill(api):
    """A1, A9."""
    turns = [*user("Hi"), {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}, *user("Say yes.")]
    assert api.messages.create(model=MODEL, max_tokens=5, messages=turns).content
    # The answer goes on where the last turn ends.
    turns.append({"role": "assistant", "content": "Yes, I"})
    assert api.messages.create(model=MODEL, max_tokens=5, messages=turns, extra_body=EXACT).content[0].text


def test_tokens_are_counted(api):
    asked = {"model": MODEL, "messages": user(), "system": "Be brief."}
    counted = api.messages.count_tokens(**asked).input_tokens
    usage = api.messages.create(**asked, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_errors_are_typed(api):
    """A4, A5, A6: the client's own exception classes, with the field in the message."""
    with pytest.raises(anthropic.NotFoundError) as missing:
        api.messages.create(model="no-such-model", max_tokens=5, messages=user())
    assert missing.value.body["type"] == "error" and missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as silly:
        api.messages.create(model=MODEL, max_tokens=5, messages=user(), extra_body={"temperature": 99})
    assert "temperature" in silly.value.body["error"]["message"]
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError) as long:
            api.messages.create(model=MODEL, max_tokens=10**6, messages=user(), stream=stream)
        assert "context" in long.value.body["error"]["message"]
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}
    with pytest.raises(anthropic.BadRequestError) as unseen:
        api.messages.create(model=MODEL, max_tokens=5, messages=[{"role": "user", "content": [image]}])
    assert "messages[0].content[0]" in unseen.value.body["error"]["message"]


def test_keys(upstream, tmp_path):
    """X1: the key comes in `x-api-key`."""
    from gateway import Gateway

    with Gateway("--upstream", upstream.url, "--api-key", "sk-right", folder=tmp_path) as gateway:
        wrong = anthropic.Anthropic(base_url=gateway.url, api_key="sk-wrong", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError):
            wrong.messages.create(model="scripted", max_tokens=5, messages=user())
        right = anthropic.Anthropic(base_url=gateway.url, api_key="sk-right", max_retries=0)
        right.messages.create(model="scripted", max_tokens=5, messages=user())
        assert all("sk-right" not in str(headers) for headers in upstream.headers), "X2"
