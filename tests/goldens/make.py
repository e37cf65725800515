#!/usr/bin/env python3
"""Renders every conversation with every template as the reference library does: `make.py TEMPLATES OUT`.

TEMPLATES is a folder of `*.jinja`; OUT gets the conversations, and one JSON file for each template with the rendered text of every
conversation, or the fact that it is refused. What `scripts/goldens.sh` runs, with the reference library in a venv of its own.
"""

import copy
import datetime
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import render_jinja_template

from conversations import CONVERSATIONS

# The same for all: parity does not depend on what the tokens are called.
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def prepared(messages: list[dict]) -> list[dict]:
    """As the field's servers hand messages to the library: no nulls, arguments as objects, content that is there."""
    messages = copy.deepcopy(messages)
    for message in messages:
        if message.get("content") is None:
            message["content"] = ""
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def with_text(messages: list[dict]) -> list[dict]:
    join = lambda content: content if isinstance(content, str) else "\n".join(part["text"] for part in content)
    return [{**message, "content": join(message["content"])} for message in messages]


def with_parts(messages: list[dict]) -> list[dict]:
    split = lambda content: [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [{**message, "content": split(message["content"])} for message in messages]


def undated(text: str) -> str:
    """Without today's date, in the forms that templates write it in."""
    for form in ("%Y-%m-%d", "%d %b %Y", "%B %d, %Y"):
        text = text.replace(datetime.datetime.now().strftime(form), "TODAY")
    return text


def rendered(template: str, body: dict, form) -> dict:
    more = dict(body.get("chat_template_kwargs", {}))
    if "reasoning_effort" in body:
        more.setdefault("reasoning_effort", body["reasoning_effort"])
    continued = body.get("continue_final_message", False)
    try:
        texts, _ = render_jinja_template(
            conversations=[form(prepared(body["messages"]))],
            tools=copy.deepcopy(body.get("tools")),
            documents=copy.deepcopy(body.get("documents")),
            chat_template=template,
            continue_final_message=continued,
            add_generation_prompt=body.get("add_generation_prompt", not continued),
            **{**TOKENS, **more},
        )
    except Exception as error:  # Whatever it is, a server answers it with a refusal.
        return {"refused": f"{type(error).__name__}: {error}".split("\n")[0][:200]}
    return {"text": undated(texts[0])}


def case(source: str, body: dict) -> dict:
    """Content is text, or a list of parts: which of the two a template wants, servers find out."""
    as_text, as_parts = rendered(source, body, with_text), rendered(source, body, with_parts)
    useful = as_parts != as_text and ("text" in as_parts or "refused" in as_text)
    return {**as_text, **({"parts": as_parts} if useful else {})}


def write(path: pathlib.Path, value) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main(templates: pathlib.Path, out: pathlib.Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write(out / "conversations.json", CONVERSATIONS)
    for path in sorted(templates.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        cases = {name: case(source, body) for name, body in CONVERSATIONS.items()}
        write(out / f"{path.name}.json", {"template": path.name, "tokens": TOKENS, "cases": cases})


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
