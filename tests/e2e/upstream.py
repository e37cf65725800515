"""A scripted OpenAI-compatible server that can also misbehave: answers are written byte by byte by a test's own coroutine."""

import asyncio
import json
import threading

HEAD_JSON = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
HEAD_STREAM = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def event(data) -> bytes:
    """One event as one HTTP chunk."""
    body = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


def chunk(delta: dict, finish: str | None = None) -> dict:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-up", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "choices": [choice]}


def completion(content: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    body = {"id": "chatcmpl-up", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice], "usage": usage}
    text = json.dumps(body)
    return (HEAD_JSON.format(len(text)) + text).encode()


async def plain(body: dict, writer) -> None:
    """The answer of a well-behaved server: three words and the usage."""
    if not body.get("stream"):
        writer.write(completion("one two three"))
        return
    writer.write(HEAD_STREAM.encode())
    writer.write(event(chunk({"role": "assistant", "content": ""})))
    for word in ("one", " two", " three"):
        writer.write(event(chunk({"content": word})))
        await writer.drain()
    writer.write(event(chunk({}, "stop")))
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        writer.write(event({**chunk({}), "choices": [], "usage": usage}))
    writer.write(event("[DONE]") + END)


class Upstream:
    """Serves on a thread of its own. `answer` is the coroutine `(body, writer)` that writes a whole response."""

    def __init__(self):
        self.answer = plain
        # Bodies of the questions that came, in order.
        self.questions: list[dict] = []
        self.headers: list[dict[str, str]] = []

    def __enter__(self):
        started = threading.Event()
        self.loop = asyncio.new_event_loop()

        def run():
            asyncio.set_event_loop(self.loop)
            self.server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048))
            started.set()
            self.loop.run_forever()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        assert started.wait(10)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_):
        def stop():
            self.server.close()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.call_soon(self.loop.stop)

        self.loop.call_soon_threadsafe(stop)
        self.thread.join(10)

    async def _serve(self, reader, writer):
        try:
            while await self._one(reader, writer):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _one(self, reader, writer) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if head[0].startswith("GET /v1/models"):
            text = json.dumps({"object": "list", "data": [{"id": "scripted", "object": "model", "created": 1, "owned_by": "e2e"}]})
            writer.write((HEAD_JSON.format(len(text)) + text).encode())
            return True
        if head[0].startswith("GET "):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return True
        question = json.loads(body)
        self.questions.append(question)
        self.headers.append(headers)
        await self.answer(question, writer)
        return not writer.is_closing()


def main() -> None:
    """As a process of its own, which can be stopped: says its address, then serves until it is killed."""
    with Upstream() as server:
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
