"""The official Python client against both kinds of backend, streaming and not."""

import openai
import pytest

from process import wait_for


def client(gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(params=["engine", "relay"])
def served(request):
    """A client and the model that its gateway serves."""
    if request.param == "engine":
        return client(request.getfixturevalue("demo")), "smollm2-135m"
    return client(request.getfixturevalue("relay")), "scripted"


def messages(content="Name three colours."):
    return [{"role": "user", "content": content}]


def test_a_whole_answer(served):
    api, model = served
    answer = api.chat.completions.create(model=model, messages=messages(), max_tokens=20)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens > 0


def test_a_stream(served):
    api, model = served
    options = {"include_usage": True}
    chunks = list(api.chat.completions.create(model=model, messages=messages(), max_tokens=20, stream=True, stream_options=options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0


def test_a_stream_that_is_left_early(served):
    api, model = served
    with api.chat.completions.create(model=model, messages=messages("Go on."), max_tokens=200, stream=True) as stream:
        next(iter(stream))
    assert api.chat.completions.create(model=model, messages=messages(), max_tokens=2).choices


def test_models(served):
    api, model = served
    assert model in [entry.id for entry in api.models.list()]


def test_errors_are_typed(served):
    """A4: the client's own exception classes, with the code and the parameter."""
    api, model = served
    with pytest.raises(openai.NotFoundError) as missing:
        api.chat.completions.create(model="no-such-model", messages=messages())
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as wrong:
        api.post("/chat/completions", body={"model": 5, "messages": messages()}, cast_to=object)
    assert wrong.value.param == "model"


def test_bad_values_are_refused_on_engines(demo):
    """A6."""
    with pytest.raises(openai.BadRequestError) as silly:
        client(demo).chat.completions.create(model="smollm2-135m", messages=messages(), temperature=99)
    assert silly.value.param == "temperature"


def test_keys(upstream, tmp_path):
    from gateway import Gateway

    with Gateway("--upstream", upstream.url, "--api-key", "sk-right", folder=tmp_path) as gateway:
        wrong = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="sk-wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            wrong.chat.completions.create(model="scripted", messages=messages())
        right = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="sk-right", max_retries=0)
        assert right.chat.completions.create(model="scripted", messages=messages()).choices
        # X2, X5: the key stays here.
        assert all("sk-right" not in str(headers) for headers in upstream.headers)
        wait_for("the request is logged", lambda: "status=200" in gateway.log, 5)
        assert "sk-right" not in gateway.log and "sk-wrong" not in gateway.log
