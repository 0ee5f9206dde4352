"""What holds for every route: keys, request ids, the log, counters, origins, and leaving in order."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ftc import settings
from ftc.errors import FtcError
from ftc.serve.meter import Histogram
from ftc.serve.operation import Operation
from tests.unit.serve.server import Server, case

KEYS = ("test-key-1", "second key")
ORIGIN = "https://pages.example"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    rules = [{"tail": "Count", "text": "</think>\n\n1 2 3 4 5", "endless": True}, {"text": "</think>\n\nfine"}]
    folder = tmp_path_factory.mktemp("closed")
    with Server(folder, {"rules": rules}, operation=Operation.make(KEYS, (ORIGIN,))) as server:
        yield server


def http(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, trust_env=False, timeout=10)


def test_a_server_with_a_key_c093(closed: Server) -> None:
    recorded = case("c093")
    message = {"model": "demo", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    with http(closed) as client:
        for (line, header), status in zip(recorded["input"]["requests"], recorded["expect"]["status"], strict=True):
            method, path = line.split()
            name, _, value = (header or "").partition(": ")
            answer = client.request(method, path, headers={name: value} if name else {},
                                    json=message if method == "POST" else None)  # fmt: skip
            assert answer.status_code == status, line
            if status == 401:
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error"]["type"] == "authentication_error"
    assert not any("test-key-1" in str(argument) for argument in closed.engine._command)


@pytest.mark.parametrize("key", [*KEYS])
def test_each_key_opens(closed: Server, key: str) -> None:
    with http(closed) as client:
        assert client.get("/v1/models", headers={"authorization": f"bearer {key}"}).status_code == 200
        assert client.get("/v1/models", headers={"x-api-key": key}).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer test"}, {"authorization": "test-key-1"}, {"x-api-key": "test-key-"}]
)
def test_near_misses_stay_out(closed: Server, headers: dict[str, str]) -> None:
    with http(closed) as client:
        answer = client.post("/v1/messages", headers=headers, json={})
    assert (answer.status_code, answer.json()["type"]) == (401, "error")


def test_keys_from_the_environment_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    path.write_text("# for the laptop\nthree\n\n two \n")
    monkeypatch.setenv("FTC_API_KEY", "one, two")
    monkeypatch.setenv("FTC_API_KEY_FILE", str(path))
    assert settings.api_keys() == ("one", "two", "three")
    assert [Operation.from_settings().admits(key) for key in ("one", "three", "four", "", None)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    for broken in ("# nothing\n", None):
        path.unlink() if broken is None else path.write_text(broken)
        with pytest.raises(FtcError, match="FTC_API_KEY_FILE"):
            settings.api_keys()
    monkeypatch.delenv("FTC_API_KEY_FILE")
    monkeypatch.delenv("FTC_API_KEY")
    assert Operation.from_settings().admits(None)


def test_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTC_CORS", "http://a:1/, http://b")
    monkeypatch.setenv("FTC_NONCE", "keep")
    operation = Operation.from_settings()
    assert (operation.origins, operation.keep_nonce) == (("http://a:1", "http://b"), True)
    monkeypatch.setenv("FTC_NONCE", "odd")
    with pytest.raises(FtcError, match="FTC_NONCE"):
        Operation.from_settings()


def test_pages_of_a_known_origin_may_use_it(closed: Server) -> None:
    ask = {"origin": ORIGIN, "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    with http(closed) as client:
        allowed = client.options("/v1/chat/completions", headers=ask)
        assert allowed.status_code == 204
        assert allowed.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in allowed.headers["access-control-allow-methods"]
        assert allowed.headers["access-control-allow-headers"] == "x-api-key"
        answer = client.get("/v1/models", headers={"origin": ORIGIN, "x-api-key": KEYS[0]})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)
        # A page may read why it was refused, too.
        assert client.get("/v1/models", headers={"origin": ORIGIN}).headers["access-control-allow-origin"] == ORIGIN
        other = client.options("/v1/chat/completions", headers=ask | {"origin": "https://evil.example"})
        assert other.status_code in (401, 403) and "access-control-allow-origin" not in other.headers
        answer = client.get("/v1/models", headers={"origin": "https://evil.example", "x-api-key": KEYS[0]})
        assert answer.status_code == 403


def test_every_answer_has_an_id_and_a_line(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="ftc.access"), http(server) as client:
        logging.getLogger("ftc").propagate = True
        own = client.get("/v1/models", headers={"x-request-id": "abc-1"})
        made = [client.get(path).headers["x-request-id"] for path in ("/health", "/nothing")]
        odd = client.get("/health", headers={"x-request-id": "a b\tc"})
        stream = server.ask("Say hi", stream=True)
        # The line is written when the client already has the last byte.
        until = time.monotonic() + 2
        while not any(stream.headers["x-request-id"] in record.getMessage() for record in caplog.records):
            assert time.monotonic() < until
            time.sleep(0.01)
    assert own.headers["x-request-id"] == own.headers["request-id"] == "abc-1"
    assert len(set(made)) == 2 and all(re.fullmatch(r"req_[0-9a-f]{24}", id) for id in made)
    assert odd.headers["x-request-id"].startswith("req_")
    lines = [record.getMessage() for record in caplog.records if record.name == "ftc.access"]
    assert any(re.fullmatch(r"abc-1 GET /v1/models 200 \d+\.\d+ s \d+ bytes", line) for line in lines)
    assert not any("GET /health" in line for line in lines)
    (line,) = [line for line in lines if stream.headers["x-request-id"] in line]
    assert "POST /v1/chat/completions 200 " in line and f"{len(stream.content)} bytes" in line


def values(text: str) -> dict[str, float]:
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in rows}


def test_metrics_count_what_was_done(tmp_path: Path) -> None:
    rules = [{"tail": "Count", "text": "</think>\n\n1 2 3 4 5", "endless": True}, {"text": "</think>\n\nfine"}]
    with Server(tmp_path, {"rules": rules}) as server, http(server) as client:
        usage = [server.ask("word " * 100).json()["usage"] for _ in range(2)]
        server.ask("x", temperature=9)
        client.get("/made/up/17")
        server.stats()
        answer = client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = answer.text
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) ftc_\w+ .+|ftc_\w+(\{(\w+="[^"]*",?)+\})? -?[0-9.e+-]+', line), line
    typed = re.findall(r"# TYPE (\w+)", text)
    assert len(typed) == len(set(typed))
    found = values(text)
    assert found['ftc_http_requests_total{route="/v1/chat/completions",status="200"}'] == 2
    assert found['ftc_http_requests_total{route="/v1/chat/completions",status="400"}'] == 1
    assert found['ftc_http_requests_total{route="other",status="404"}'] == 1
    assert found["ftc_http_requests_in_flight"] == 1
    assert found["ftc_prompt_tokens_total"] == sum(one["prompt_tokens"] for one in usage)
    assert found["ftc_completion_tokens_total"] == sum(one["completion_tokens"] for one in usage)
    assert found["ftc_cached_tokens_total"] == usage[1]["prompt_tokens_details"]["cached_tokens"]
    assert found["ftc_first_token_seconds_count"] == found['ftc_first_token_seconds_bucket{le="+Inf"}'] == 2
    assert found['ftc_answers_total{finish="stop"}'] == 2
    assert found["ftc_engine_ready"] == 1 and found["ftc_engine_running"] == 0


def test_a_histogram_cumulates() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.add(value)
    assert histogram.lines("x") == [
        'x_bucket{le="0.1"} 2', 'x_bucket{le="1.0"} 3', 'x_bucket{le="+Inf"} 4', "x_sum 7.650000", "x_count 4"
    ]  # fmt: skip


def test_a_draining_server_ends_what_runs_and_takes_nothing_new(tmp_path: Path) -> None:
    rules = [{"text": "</think>\n\n1 2 3 4 5 6 7 8 9", "repeat": 3}]
    with Server(tmp_path, {"rules": rules, "decode_rate": 60}) as server, http(server) as client:
        assert client.get("/ready").json() == {"ready": True}
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(server.ask("x", stream=True)))
        thread.start()
        while server.engine.in_flight == 0:
            time.sleep(0.005)
        server.front.drain()
        refused = server.ask("x")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert refused.headers["retry-after"] == "1"
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
        thread.join()
    assert answers[0].status_code == 200 and answers[0].text.endswith("data: [DONE]\n\n")


def test_not_ready_while_loading(tmp_path: Path) -> None:
    with Server(tmp_path, {"rules": [], "load": {"seconds": 3.0}}, wait=False) as server, http(server) as client:
        assert client.get("/ready").status_code == 503
