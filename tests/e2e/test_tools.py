"""Tools with the official clients in all three APIs: a call is forced, its result goes up again, and the model answers. The model
is small: that a call is one, with the arguments' schema, is the engine's doing."""

import json

import anthropic
import jsonschema
import openai
import pytest

from places import MODEL

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Lyon", "Nice"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
OTHER = {"type": "object", "properties": {"zone": {"type": "string", "maxLength": 8}}, "required": ["zone"], "additionalProperties": False}
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
TOOLS = [("weather", "The weather in a city.", SCHEMA), ("clock", "The time.", OTHER)]
SCHEMAS = {name: schema for name, _, schema in TOOLS}
CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "description": text, "parameters": schema}} for name, text, schema in TOOLS
]
RESPONSE_TOOLS = [{"type": "function", "name": name, "description": text, "parameters": schema} for name, text, schema in TOOLS]
MESSAGE_TOOLS = [{"name": name, "description": text, "input_schema": schema} for name, text, schema in TOOLS]
EXACT = {"temperature": 0}


@pytest.fixture
def api(demo):
    return openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture
def claude(demo):
    return anthropic.Anthropic(base_url=demo.url, api_key="none", max_retries=0, timeout=120)


def valid(name, arguments):
    jsonschema.validate(arguments, SCHEMAS[name])
    return name, arguments


CHAT_CHOICES = ["required", {"type": "function", "function": {"name": "weather"}}]


@pytest.mark.parametrize("choice", CHAT_CHOICES)
def test_chat(api, choice):
    """A8."""
    asked = {"model": MODEL, **EXACT, "messages": [QUESTION], "tools": CHAT_TOOLS, "tool_choice": choice, "max_tokens": 150}
    asked["parallel_tool_calls"] = False
    whole = api.chat.completions.create(**asked).choices[0]
    call = whole.message.tool_calls[0]
    told = valid(call.function.name, json.loads(call.function.arguments))
    assert whole.finish_reason == ("tool_calls" if choice == "required" else "stop") and whole.message.content is None
    with api.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion().choices[0]
    streamed = final.message.tool_calls[0].function
    assert (streamed.name, json.loads(streamed.arguments)) == told and final.finish_reason == whole.finish_reason
    turns = [QUESTION, whole.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
    answer = api.chat.completions.create(model=MODEL, **EXACT, messages=turns, tools=CHAT_TOOLS, max_tokens=12)
    assert answer.choices[0].message.content


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_messages(claude, choice):
    """A8."""
    choice = {**choice, "disable_parallel_tool_use": True}
    asked = {"model": MODEL, "max_tokens": 150, "messages": [QUESTION], "tools": MESSAGE_TOOLS, "tool_choice": choice, "extra_body": EXACT}
    whole = claude.messages.create(**asked)
    (block,) = whole.content
    assert block.type == "tool_use" and block.id.startswith("toolu_") and whole.stop_reason == "tool_use"
    told = valid(block.name, block.input)
    with claude.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert (final.content[0].name, final.content[0].input) == told and final.stop_reason == "tool_use"
    assert kinds[:2] == ["message_start", "content_block_start"] and "input_json" in kinds
    turns = [
        QUESTION,
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in whole.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "Rain."}]},
    ]
    answer = claude.messages.create(model=MODEL, max_tokens=12, messages=turns, tools=MESSAGE_TOOLS, extra_body=EXACT)
    assert answer.content[0].type == "text" and answer.content[0].text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_responses(api, choice):
    """A8."""
    asked = {"model": MODEL, **EXACT, "input": [QUESTION], "tools": RESPONSE_TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    whole = api.responses.create(**asked)
    (item,) = whole.output
    assert item.type == "function_call" and item.status == whole.status == "completed"
    told = valid(item.name, json.loads(item.arguments))
    events = list(api.responses.create(**asked, stream=True))
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta") == done.arguments
    with api.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert (final.output[0].name, json.loads(final.output[0].arguments)) == told
    turns = [QUESTION, *(item.model_dump(exclude_none=True) for item in whole.output)]
    turns.append({"type": "function_call_output", "call_id": item.call_id, "output": "Rain."})
    assert api.responses.create(model=MODEL, **EXACT, input=turns, tools=RESPONSE_TOOLS, max_output_tokens=12).output_text


def test_a_tool_whose_schema_is_none_is_refused(api, claude):
    """A6: by the field that asked for it."""
    broken = {"type": "object", "properties": {"x": {"type": "cow"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": broken}}
    with pytest.raises(openai.BadRequestError) as refused:
        api.chat.completions.create(model=MODEL, messages=[QUESTION], tools=[tool], tool_choice="required")
    assert refused.value.param == "tool_choice"
    with pytest.raises(anthropic.BadRequestError) as refused:
        tools = [{"name": "f", "input_schema": broken}]
        claude.messages.create(model=MODEL, max_tokens=9, messages=[QUESTION], tools=tools, tool_choice={"type": "any"})
    assert "'tool_choice'" in refused.value.body["error"]["message"]
