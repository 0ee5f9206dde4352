"""`ftc serve` and `ftc chat` on the embedded model, as a user has them: real engine, real HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest


class Served:
    """A server process; `first_s` are the seconds from its start to its first token."""

    def __init__(self, *arguments: str) -> None:
        begin = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ftc", "serve", "demo", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        self.ready = self.process.stdout.readline()
        with self.stream("Hello", max_tokens=4) as response:
            next(line for line in response.iter_lines() if line.startswith("data: "))
        self.first_s = time.monotonic() - begin

    def stream(self, text: str, **fields: Any) -> Any:
        body = {"model": "demo", "messages": [{"role": "user", "content": text}], "stream": True} | fields
        return httpx.stream("POST", f"{self.url}/v1/chat/completions", json=body, timeout=60)

    def engine(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(15) == 0
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served("--dtype", "float32")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def golden(demo: Path) -> list[dict[str, Any]]:
    cases = json.loads((demo / "golden.json").read_text())["cases"]
    return [one for one in cases if "messages" in one and one["min_top2_gap"] >= 1e-3]


def fields_of(one: dict[str, Any]) -> dict[str, Any]:
    switch = {"chat_template_kwargs": {"enable_thinking": one["enable_thinking"]}}
    tools = {"tools": one["tools"]} if one["tools"] else {}
    return {"model": "demo", "messages": one["messages"], "temperature": 0, "extra_body": switch, **tools}


def test_the_first_token_comes_within_ten_seconds_of_the_start(served: Served) -> None:
    assert served.ready.startswith("ready: demo, context 4096 tokens, float32")
    assert served.first_s < 10


def test_golden_conversations_come_out_word_for_word(client: openai.OpenAI, demo: Path) -> None:
    seen_calls = 0
    for one in golden(demo):
        answer = client.chat.completions.create(**fields_of(one))
        message = answer.choices[0].message
        assert answer.usage is not None and answer.usage.prompt_tokens == len(one["prompt_ids"])
        text = one["output_text"].removesuffix("<|im_end|>")
        head, call_mark, calls = text.partition("<tool_call>\n")
        reasoning, close, content = head.rpartition("</think>")
        assert (message.content or "") == content.strip("\n"), one["name"]
        assert (message.model_dump().get("reasoning_content") or "") == reasoning.strip("\n")
        if call_mark:
            (call,) = message.tool_calls or []
            wanted = json.loads(calls.removesuffix("\n</tool_call>"))
            assert call.type == "function"
            assert (call.function.name, json.loads(call.function.arguments)) == (wanted["name"], wanted["arguments"])
            assert answer.choices[0].finish_reason == "tool_calls"
            seen_calls += 1
        else:
            assert answer.choices[0].finish_reason == "stop" and message.tool_calls is None
    assert seen_calls >= 3


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI, demo: Path) -> None:
    for one in golden(demo)[:4]:
        whole = client.chat.completions.create(**fields_of(one)).choices[0].message.content or ""
        stream = client.chat.completions.create(stream=True, **fields_of(one))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole


def test_seeds_and_logprobs(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 24,
        "temperature": 1.0,
    }

    def draw(seed: int) -> str:
        return str(client.chat.completions.create(seed=seed, **fields).choices[0].message.model_dump())

    assert draw(7) == draw(7)
    assert len({draw(seed) for seed in range(3)}) > 1
    answer = client.chat.completions.create(logprobs=True, top_logprobs=2, **(fields | {"temperature": 0}))
    assert answer.choices[0].logprobs is not None and answer.usage is not None
    entries = answer.choices[0].logprobs.content or []
    assert len(entries) == answer.usage.completion_tokens == 24
    for entry in entries:
        # Greedy: the token drawn is the best one.
        assert entry.top_logprobs[0].token == entry.token and len(entry.top_logprobs) == 2
        assert entry.logprob <= 0


def test_a_prompt_over_the_context_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="4096") as refusal:
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "word " * 5000}])
    assert refusal.value.code == "context_length_exceeded"


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.full)])
def test_eight_streams_with_clients_leaving_at_random(served: Served, seconds: int) -> None:
    end = time.monotonic() + seconds
    problems: list[str] = []
    finished = [0]

    def one(seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < end:
            leave_after = chance.choice([1, 3, 20, 200])
            with served.stream("Tell me a story.", max_tokens=60, seed=seed) as response:
                if response.status_code != 200:
                    problems.append(f"status {response.status_code}")
                    return
                for count, line in enumerate(response.iter_lines()):
                    if '"error"' in line:
                        problems.append(line)
                    if count > leave_after:
                        break
                else:
                    finished[0] += 1

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(8)]
    engine = served.engine().pid
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60)
    assert problems == [] and finished[0] > 0
    assert served.engine().pid == engine
    assert httpx.get(f"{served.url}/health").json()["status"] == "ready"


def test_a_killed_engine_ends_the_stream_with_an_error_and_the_next_request_is_served(served: Served) -> None:
    with served.stream("Tell me a story.", max_tokens=500) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(served.engine().pid, signal.SIGKILL)
        rest = [line for line in lines if line.startswith("data: ")]
    assert "SIGKILL" in json.loads(rest[-1].removeprefix("data: "))["error"]["message"]
    with served.stream("Hello", max_tokens=4) as response:
        assert response.status_code == 200
        assert response.read().decode().rstrip().endswith("data: [DONE]")


def test_a_broken_checkpoint_is_one_error_naming_the_file(tmp_path: Path, demo: Path) -> None:
    for file in demo.iterdir():
        if file.suffix in (".json", ".safetensors"):
            (tmp_path / file.name).symlink_to(file)
    shard = tmp_path / "model-00002-of-00003.safetensors"
    data = shard.read_bytes()[:-64]
    shard.unlink()
    shard.write_bytes(data)
    begin = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-m", "ftc", "serve", str(tmp_path), "--port", "0"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 1 and time.monotonic() - begin < 10
    assert result.stderr.count(shard.name) == 1 and "Traceback" not in result.stderr


def test_chat_starts_a_server_and_leaves_nothing_behind() -> None:
    mark = secrets.token_hex(8)
    result = subprocess.run(
        [sys.executable, "-m", "ftc", "chat"],
        input="What is 23 + 45?\n",
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TEST_MARK": mark},
    )
    assert result.returncode == 0 and result.stdout.strip(), result.stderr
    time.sleep(0.2)
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TEST_MARK") == mark:
                left.append(process.cmdline())
    assert left == []
