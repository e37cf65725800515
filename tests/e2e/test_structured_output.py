"""The official OpenAI client on answers that are held to a schema, an expression or a grammar: the model is small, so it is the
engine that keeps them in form."""

import json
import re

import httpx
import jsonschema
import openai
import pydantic
import pytest

from places import MODEL

EXACT = {"model": MODEL, "temperature": 0, "max_tokens": 200}
ASKED = {**EXACT, "messages": [{"role": "user", "content": "Tell me about the city of Paris."}]}
# Strings are bounded: a small model may find no end by itself.
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "size": {"enum": ["small", "large"]},
        "rivers": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 2},
        "population": {"type": "integer", "minimum": 1, "maximum": 99999999},
    },
    "required": ["name", "size", "rivers", "population"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
NUMBER = r"0[1-9]( [0-9]{2}){4}"


@pytest.fixture
def api(demo):
    return openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0, timeout=120)


def both(api, **asked) -> str:
    """The answer, which is the same streamed and whole."""
    whole = api.chat.completions.create(**{**ASKED, **asked}).choices[0]
    chunks = list(api.chat.completions.create(**{**ASKED, **asked}, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == whole.finish_reason == "stop"
    return whole.message.content


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.5, "seed": 7}])
def test_a_schema_is_kept(api, sampling):
    text = both(api, response_format=FORMAT, **sampling)
    jsonschema.validate(json.loads(text), SCHEMA)


def test_the_clients_own_parser(api):
    class City(pydantic.BaseModel):
        is_large: bool
        district: int = pydantic.Field(ge=1, le=20)

    parsed = api.chat.completions.parse(**ASKED, response_format=City).choices[0].message.parsed
    assert isinstance(parsed, City)


@pytest.mark.parametrize(
    "extra",
    [
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
        {"json_schema": json.dumps(SCHEMA)},
    ],
)
def test_a_schema_by_other_names(api, extra):
    jsonschema.validate(json.loads(both(api, extra_body=extra)), SCHEMA)


def test_any_object(api):
    """What it holds is the model's; where the budget does not cut it, it is an object."""
    answer = api.chat.completions.create(**ASKED, response_format={"type": "json_object"}).choices[0]
    assert answer.message.content.startswith("{")
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)


@pytest.mark.parametrize("extra", [{"guided_regex": NUMBER}, {"regex": NUMBER}, {"structured_outputs": {"regex": NUMBER}}])
def test_an_expression_is_matched(api, extra):
    assert re.fullmatch(NUMBER, both(api, extra_body=extra))


@pytest.mark.parametrize("field", ["guided_grammar", "ebnf"])
def test_a_grammar_is_kept(api, field):
    grammar = 'root ::= sum\nsum ::= digit ("+" digit){1,3}\ndigit ::= [0-9]'
    assert re.fullmatch(r"[0-9](\+[0-9]){1,3}", both(api, extra_body={field: grammar}))


@pytest.mark.parametrize("wrap", [lambda texts: {"guided_choice": texts}, lambda texts: {"structured_outputs": {"choice": texts}}])
def test_one_of_several_texts(api, wrap):
    texts = ['"Marseille"', "Lyon\tor so", "naïve 🌍"]
    assert both(api, extra_body=wrap(texts), temperature=1.8, seed=1) in texts


def test_other_endpoints(demo, api):
    completion = api.completions.create(**EXACT, prompt="The number is", extra_body={"guided_regex": " [0-9]{3}"})
    assert re.fullmatch(" [0-9]{3}", completion.choices[0].text)
    format = {"type": "json_schema", "name": "city", "schema": SCHEMA}
    response = api.responses.create(model=MODEL, temperature=0, input="Paris?", text={"format": format})
    jsonschema.validate(json.loads(response.output_text), SCHEMA)
    for field, value, check in [
        ("json_schema", json.dumps(SCHEMA), lambda text: jsonschema.validate(json.loads(text), SCHEMA)),
        ("regex", NUMBER, lambda text: re.fullmatch(NUMBER, text)[0]),
        ("ebnf", 'root ::= "yes" | "no"', lambda text: ["yes", "no"].index(text)),
    ]:
        body = {"text": "Paris", "sampling_params": {field: value, "temperature": 0, "max_new_tokens": 200}}
        check(httpx.post(f"{demo.url}/generate", json=body, timeout=120).json()["text"])


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "cow"}}}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"extra_body": {"guided_json": "{"}}, "guided_json"),
        ({"extra_body": {"guided_regex": "(a"}}, "guided_regex"),
        ({"extra_body": {"guided_grammar": "root ::= other"}}, "guided_grammar"),
        ({"extra_body": {"guided_choice": []}}, "guided_choice"),
        ({"extra_body": {"structured_outputs": {"regex": "["}}}, "structured_outputs"),
        ({"extra_body": {"structural_tag": {"type": "structural_tag"}}}, "structural_tag"),
        ({"extra_body": {"guided_regex": "a", "guided_choice": ["a"]}}, "guided_choice"),
    ],
)
def test_what_is_no_constraint_is_refused_by_name(api, asked, param):
    """A4, A6: whether the gateway finds it or the engine's compiler does."""
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            api.chat.completions.create(**ASKED, **asked, stream=stream)
        assert refused.value.param == param and f"'{param}" in refused.value.message


def test_refusals_have_the_endpoints_names(demo, api):
    with pytest.raises(openai.BadRequestError) as refused:
        api.responses.create(model=MODEL, input="x", text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "cow"}}})
    assert refused.value.param == "text.format"
    body = {"text": "x", "sampling_params": {"regex": "(a"}}
    answer = httpx.post(f"{demo.url}/generate", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "sampling_params.regex")
