"""The conversations of the golden files, as a client of the API sends them: each is the body of a chat request."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather <now> & \"here\", in °C",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Such as 'Zürich'"},
                "days": {"type": "integer", "default": 1, "minimum": 1},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "limit": {"type": "number", "default": 0.25},
            },
            "required": ["city"],
        },
    },
}
# Numbers that Python writes in its own way.
SCALE = {
    "type": "function",
    "function": {
        "name": "scale",
        "description": "Scales.",
        "parameters": {
            "type": "object",
            "properties": {
                "small": {"type": "number", "default": 1.5e-07},
                "large": {"type": "number", "default": 1e16},
                "whole": {"type": "number", "default": 100000.0},
            },
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
}


def user(content):
    return {"role": "user", "content": content}


def said(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content, id="call00001", name="get_weather"):
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content}


SYSTEM = {"role": "system", "content": "Be brief.\nAnd kind."}
ASKED = user("What is the weather in Zürich <today> & tomorrow?")
CALLED = said("", tool_calls=[call("get_weather", '{"city": "Zürich", "days": 2, "limit": 0.5, "deep": {"a": [1, null, true]}}')])

CONVERSATIONS = {
    "user": {"messages": [user("Hello")]},
    "system": {"messages": [SYSTEM, user("Hello")]},
    "turns": {"messages": [SYSTEM, user("Hi"), said("Hello!"), user("  spaces \n around  ")]},
    "unicode": {"messages": [user("日本語 😀 \"quoted\" 'single' \\ <|im_end|> {{ x }} {% y %}")]},
    "no_generation_prompt": {"messages": [user("Hi"), said("Hello!")], "add_generation_prompt": False},
    "continued": {"messages": [user("Hi"), said("Well, I")], "continue_final_message": True},
    "continued_space": {"messages": [user("Hi"), said("Well, I ")], "continue_final_message": True},
    "continued_repeated": {"messages": [user("the end"), said("the end")], "continue_final_message": True},
    "parts": {"messages": [user([{"type": "text", "text": "One."}])]},
    "tools": {"messages": [SYSTEM, ASKED], "tools": [WEATHER, CLOCK]},
    "tools_floats": {"messages": [ASKED], "tools": [SCALE]},
    "tools_no_system": {"messages": [ASKED], "tools": [WEATHER]},
    "tool_call": {"messages": [ASKED, CALLED, result("12 °C")], "tools": [WEATHER]},
    "tool_call_done": {
        "messages": [SYSTEM, ASKED, CALLED, result('{"temp": 12, "sky": "grey"}'), said("Grey, 12 °C."), user("Thanks")],
        "tools": [WEATHER, CLOCK],
    },
    "tool_calls_two": {
        "messages": [
            ASKED,
            said("Let me see.", tool_calls=[call("get_weather", '{"city": "Bern"}'), call("clock", "{}", "call00002")]),
            result("1"),
            result("noon", "call00002", "clock"),
        ],
        "tools": [WEATHER, CLOCK],
    },
    "null_content": {
        "messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": CALLED["tool_calls"]}, result("12")],
        "tools": [WEATHER],
    },
    "reasoning": {"messages": [user("2+2?"), said("4", reasoning_content="Adding.\nTwo and two."), user("3+3?")]},
    "reasoning_last": {
        "messages": [user("2+2?"), said("", reasoning_content="Look it up.", tool_calls=[call("clock", "{}")]), result("x", name="clock")],
        "tools": [CLOCK],
    },
    "thinking_off": {
        "messages": [user("Hi")],
        "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
    },
    "thinking_on": {
        "messages": [user("Hi")],
        "chat_template_kwargs": {"enable_thinking": True, "thinking": True},
        "reasoning_effort": "high",
    },
    "date_given": {"messages": [SYSTEM, user("Hi")], "chat_template_kwargs": {"date_string": "01 Jan 2001"}},
    "documents": {
        "messages": [user("What does it say?")],
        "documents": [{"title": "A", "text": "alpha <b>", "doc_id": "1"}, {"title": "B", "text": "beta", "doc_id": "2"}],
    },
    "two_users": {"messages": [user("One"), user("Two")]},
    "assistant_first": {"messages": [said("Hello"), user("Hi")]},
}
