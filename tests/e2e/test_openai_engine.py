"""The official Python client on what the gateway itself makes of an engine's tokens: choices, scores, stops, seeds, token ids."""

import openai
import pytest

from places import MODEL

ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 24}
EXACT = {**ASKED, "temperature": 0}


@pytest.fixture
def api(demo):
    return openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0, timeout=120)


def test_three_choices(api):
    """A7."""
    asked = {**ASKED, "n": 3, "seed": 5, "temperature": 1}
    whole = api.chat.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts, finishes = ["", "", ""], [[], [], []]
    for chunk in api.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finishes[choice.index] += [choice.finish_reason] if choice.finish_reason else []
    assert texts == [choice.message.content for choice in whole.choices]
    assert finishes == [[choice.finish_reason] for choice in whole.choices]
    assert len(set(texts)) > 1, "each choice has its own seed"


def test_logprobs(api):
    """U9."""
    whole = api.chat.completions.create(**EXACT, logprobs=True, top_logprobs=3)
    entries = whole.choices[0].logprobs.content
    assert len(entries) == whole.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in entries)
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert text.startswith(whole.choices[0].message.content)
    chunks = api.chat.completions.create(**EXACT, logprobs=True, top_logprobs=3, stream=True)
    streamed = [entry for chunk in chunks for choice in chunk.choices if choice.logprobs for entry in choice.logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]


def test_stop(api):
    """U4."""
    text = api.chat.completions.create(**EXACT).choices[0].message.content
    stop = text[6:10]
    cut = api.chat.completions.create(**EXACT, stop=["never there", stop]).choices[0]
    assert cut.message.content == text.split(stop)[0] and cut.finish_reason == "stop"
    chunks = api.chat.completions.create(**EXACT, stop=stop, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == cut.message.content


def test_seeds(api):
    asked = {**ASKED, "temperature": 1}
    one, again, other = (api.chat.completions.create(**asked, seed=seed).choices[0].message.content for seed in (1, 1, 2))
    assert one == again and one != other


def test_token_ids(api, demo):
    """A prompt as tokens is the same prompt; several are several choices, prompt by prompt."""
    asked = {"model": MODEL, "max_tokens": 8, "temperature": 0}
    tokens = [demo.http.post("/tokenize", json={"prompt": prompt}).json()["tokens"] for prompt in ("One, two,", "The sky is")]
    texts = [api.completions.create(**asked, prompt=prompt).choices[0].text for prompt in ("One, two,", "The sky is")]
    assert [choice.text for choice in api.completions.create(**asked, prompt=tokens).choices] == texts
    assert api.completions.create(**asked, prompt=tokens[0]).usage.prompt_tokens == len(tokens[0])


def test_too_long(api):
    """A5: both numbers, JSON even when streaming."""
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as long:
            api.chat.completions.create(**{**EXACT, "messages": [{"role": "user", "content": "word " * 9000}]}, stream=stream)
        assert long.value.code == "context_length_exceeded" and long.value.param == "messages"


def test_a_conversation_that_goes_on_is_not_tokenized_anew(api, demo):
    """The turns before are known: metrics say so."""

    def known() -> int:
        line = next(line for line in demo.http.get("/metrics").text.splitlines() if line.startswith("infergw_token_cache_hits_total "))
        return int(line.split()[1])

    turns = [{"role": "user", "content": "A long question. " * 40}]
    api.chat.completions.create(model=MODEL, messages=turns, max_tokens=1)
    before = known()
    turns += [{"role": "assistant", "content": "An answer."}, {"role": "user", "content": "Go on."}]
    api.chat.completions.create(model=MODEL, messages=turns, max_tokens=1)
    assert known() == before + 1
