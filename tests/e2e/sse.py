"""Reading a stream of server-sent events, strictly in the form that the gateway promises."""

import json
import time


class Stream:
    def __init__(self, response):
        self.response = response
        self.status = response.status_code
        self.headers = response.headers
        self.raw = b""
        # Arrival of the latest event, for tests that measure a silence.
        self.last = time.monotonic()

    def events(self):
        """The events' data in order, parsed; `[DONE]` comes as that string and must be the last thing sent."""
        buffer = b""
        done = False
        for piece in self.response.iter_raw():
            self.raw += piece
            buffer += piece
            while b"\n\n" in buffer:
                event, buffer = buffer.split(b"\n\n", 1)
                assert not done, f"after [DONE]: {event!r}"
                self.last = time.monotonic()
                if event.startswith(b":"):
                    continue
                assert event.startswith(b"data: "), event
                data = event.removeprefix(b"data: ").decode()
                done = data == "[DONE]"
                yield data if done else json.loads(data)
        assert not buffer, f"an event without its end: {buffer!r}"

    def all(self) -> list:
        return list(self.events())


def text(events: list) -> str:
    """The joined content deltas of the first choice."""
    pieces = []
    for event in events:
        for choice in event["choices"] if isinstance(event, dict) and "choices" in event else []:
            if choice["index"] == 0:
                pieces.append(choice["delta"].get("content") or "")
    return "".join(pieces)


def finish(events: list) -> list:
    """Every finish_reason that was given."""
    chunks = [event for event in events if isinstance(event, dict) and "choices" in event]
    return [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice.get("finish_reason")]


def error(events: list) -> dict | None:
    """The error of the one error event, if there is one."""
    errors = [event["error"] for event in events if isinstance(event, dict) and "error" in event]
    assert len(errors) <= 1, errors
    return errors[0] if errors else None
