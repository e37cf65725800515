"""Text in, text out through TokenSpeed's own sockets: the engine answers with the prompt's ids, so the text must be the prompt's."""

import pytest

import sse

SYSTEM = "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\nuser\n"
TEXTS = ["hello", "  two  spaces, tabs\t and\n\nlines  ", "naïve 日本語 🙂👩‍👩‍👧 ﷽", "def f(x):\n    return x", "e\u0301 é", "a" * 300]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stream", [False, True])
def test_the_prompt_comes_back(echo, text, stream):
    """U1, U3: no replacement characters, no trimming, in both modes. Control tokens are not text, so they do not show."""
    fields = {"ignore_eos": True, "max_tokens": 1000}
    if stream:
        with echo.stream(text, **fields) as opened:
            events = opened.all()
        found, finish = sse.text(events), sse.finish(events)
    else:
        choice = echo.chat(text, **fields).json()["choices"][0]
        found, finish = choice["message"]["content"], [choice["finish_reason"]]
    assert found == f"{SYSTEM}{text}\nassistant\n"
    assert finish == ["stop"]


def test_the_end_token_ends_the_answer(echo):
    """U6: the engine gets the stop ids; the first end token in the echo is the one behind the system message."""
    choice = echo.chat("hello").json()["choices"][0]
    assert choice["message"]["content"] == SYSTEM.removesuffix("\nuser\n")
    assert choice["finish_reason"] == "stop"


def test_usage_is_summed(echo):
    usage = echo.chat("hello", ignore_eos=True, max_tokens=7).json()["usage"]
    assert usage["completion_tokens"] == 7
    assert usage["total_tokens"] == usage["prompt_tokens"] + 7


@pytest.mark.parametrize("stop", ["Smol", "AI assistant named SmolLM, trained", "\nuser\n"])
def test_stop_strings_over_token_borders(echo, stop):
    """U4, in both modes."""
    fields = {"ignore_eos": True, "max_tokens": 1000, "stop": [stop]}
    expected = SYSTEM[: SYSTEM.index(stop)]
    assert echo.chat("hello", **fields).json()["choices"][0]["message"]["content"] == expected
    with echo.stream("hello", **fields) as stream:
        events = stream.all()
    assert sse.text(events) == expected
    assert sse.finish(events) == ["stop"]
