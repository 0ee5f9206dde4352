"""Prompts equal the reference library to the letter, and a hostile template gets nowhere."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from ftc.errors import CheckpointError, FtcError, RequestError
from ftc.spec.chat import Chat, JsonInTags, Reasoning, XmlFunctions
from ftc.text.conversation import normalize
from ftc.text.parser import starts_in_reasoning
from ftc.text.template import Template, missing_template_error

DEMO = Path(__file__).parents[3] / "models" / "demo"
CASES = [c for c in json.loads((DEMO / "golden.json").read_text(encoding="utf-8"))["cases"] if "messages" in c]
USER = [{"role": "user", "content": "hi"}]


def make(source: str, **variables: Any) -> Template:
    return Template({"default": source}, variables, "template.jinja")


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        file, _, kind = name.rpartition("_")
        (folder / f"{file}.{kind}").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def template() -> Template:
    found = Template.load(DEMO)
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden_prompts_are_rendered_to_the_letter(template: Template, case: dict[str, Any]) -> None:
    thinking = case["enable_thinking"]
    prompt = template.render(normalize(case["messages"]), case["tools"], enable_thinking=thinking)
    assert prompt == case["prompt_text"]
    assert starts_in_reasoning(Chat(reasoning=Reasoning()), prompt) == (thinking is not False)


def test_rendering_equals_the_reference_library() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    sources = [
        "{{ bos_token }}{% for m in messages %}{% if loop.first %}\n  {{ m.content | trim }}\n  "
        "{% endif %}{{ loop.index }}/"
        "{{ loop.length }}{% if loop.index == 2 %}{% break %}{% endif %}{{ m | tojson }}\n{%- endfor %}",
        "{% set ns = namespace(a=1) %}{% for m in messages %}{% set ns.a = ns.a + loop.revindex %}"
        "{% endfor %}{{ ns.a }}"
        "{{ ('x' * 3) ~ 4 ~ none ~ [1] }}{{ '%05d' % 42 }}{{ 'a{}b'.format(1) }}{{ 2 ** 10 }}{{ dict(a=1)['a'] }}",
        "{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ loop.last }}{{ loop.nextitem }}{% endfor %}",
        "{% macro f(x) %}[{{ x }}]{{ caller() if caller }}{% endmacro %}{% call f(1) %}in{% endcall %}{{ f(messages[0]) }}",
        "{% for k, v in messages[0] | items %}{{ k }}={{ v }},{% endfor %}{{ messages[-1].content.split('o') | join('-') }}",
        "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }};{% endfor %}",
        "{% generation %}kept{% endgeneration %}{% for x in {}.items() %}{% else %}none{% endfor %}{{ undefined_name }}",
        "{{ messages | map(attribute='content') | list | length }}{{ '\u00e9<&>' | tojson }}"
        "{{ [1, {'b': 2}] | tojson(indent=2) }}",
        "{{ messages | tojson(sort_keys=true, ensure_ascii=true) }}{{ 'a\nb' | indent(2) }}{{ range(3) | sum }}",
    ]
    messages = [{"role": "user", "content": " hello o\u00e9 "}, {"role": "assistant", "content": "b", "thinking": "t"},
                {"role": "user", "content": "<c>"}]  # fmt: skip
    for source in sources:
        (expected,), _ = render_jinja_template(
            [json.loads(json.dumps(messages))], chat_template=source, add_generation_prompt=True, bos_token="<s>"
        )
        got = make(source, bos_token="<s>").render(normalize(messages))
        assert got == expected, source


def test_where_a_template_is_found(tmp_path: Path) -> None:
    assert Template.load(tmp_path) is None
    write(tmp_path, tokenizer_config_json={"bos_token": {"content": "<s>"}})
    assert Template.load(tmp_path) is None
    named = [{"name": "default", "template": "{{ bos_token }}plain"}, {"name": "tool_use", "template": "tools"}]
    write(tmp_path, tokenizer_config_json={"bos_token": {"content": "<s>"}, "chat_template": named})
    template = Template.load(tmp_path)
    assert template is not None and template.source == "tools"
    assert template.render(USER) == "<s>plain" and template.render(USER, [{}]) == "tools"
    write(tmp_path, chat_template_json={"chat_template": "json {{ bos_token }}"})
    assert Template.load(tmp_path).render(USER) == "json <s>"  # type: ignore[union-attr]
    write(tmp_path, chat_template_jinja="file {{ bos_token }}")
    assert Template.load(tmp_path).render(USER) == "file <s>"  # type: ignore[union-attr]


def test_a_missing_template_is_explained(tmp_path: Path) -> None:
    error = missing_template_error(tmp_path)
    assert isinstance(error, RequestError)
    assert "no chat template" in str(error) and str(tmp_path / "tokenizer_config.json") in str(error)
    assert "chat_template.jinja" in str(error)


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("tokenizer_config_json", "{", "tokenizer_config.json"),
        ("tokenizer_config_json", "[]", "JSON object"),
        ("tokenizer_config_json", {"chat_template": 5}, "int"),
        ("tokenizer_config_json", {"chat_template": [{"name": "a"}]}, "list of"),
        ("chat_template_jinja", "one\n{% if %}\n", "line 2"),
        ("chat_template_jinja", "one\n\n{{ 'a' | no_such_filter }}", "line 3"),
        ("chat_template_jinja", "{% for %}", "chat_template.jinja"),
    ],
)
def test_a_broken_template_is_named_with_its_line(tmp_path: Path, file: str, content: Any, told: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        Template.load(write(tmp_path, **{file: content}))
    assert told in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_refusal_by_the_template_is_the_requests_error() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        make("{{ raise_exception('roles must alternate') }}").render(USER)


def test_a_failure_names_the_line_of_the_template() -> None:
    with pytest.raises(RequestError, match=r"UndefinedError(.|\n)*line 3"):
        make("a\nb\n{{ messages[0].nothing.more }}").render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ().__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace(a=1) %}{% set ns.__init__ = 1 %}",
        "{{ ''.format.__self__.__class__.__base__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
    ],
)
def test_the_sandbox_is_closed(source: str) -> None:
    with pytest.raises(CheckpointError, match="sandbox"):
        make(source).render(USER)


def test_pythons_own_names_are_out_of_reach() -> None:
    shown = make("{{ raise_exception.__globals__ }}{{ range.__code__ }}{{ lipsum }}{{ self.__init__ }}").render(USER)
    assert shown == ""


@pytest.mark.parametrize(
    "source",
    [
        "{{ range(10 ** 9) }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 10 ** 9 * 'a' }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ 10 ** 100000000 }}",
        "{% set n = namespace(x=3) %}{% for i in range(40) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s.replace('a', n.s) %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s | replace('a', n.s) %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = [n.s, n.s] | join(n.s) %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s.join([n.s, n.s]) %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{{ 'a'.ljust(10 ** 9) }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ [1] | batch(1000000000, 'x') | list }}",
        "{% macro f() %}{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}{% endmacro %}{% set unused = f() %}",
        "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{{ messages | tojson(indent=10 ** 9) }}",
    ],
)
def test_a_template_cannot_take_over_the_machine(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftc.text.sandbox.MAX_STEPS", 200_000)
    monkeypatch.setattr("ftc.text.sandbox.MAX_TEXT", 1 << 20)
    monkeypatch.setattr("ftc.text.template.MAX_TEXT", 1 << 20)
    with pytest.raises(RequestError, match=r"stopped|recursion"):
        make(source).render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in [0] recursive %}{% if i == 0 %}{{ loop(range(1, 99999)) }}{% endif %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% set numbers = range(99999) | list %}{% for i in numbers %}{% endfor %}",
    ],
)
def test_loops_and_calls_are_counted(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftc.text.sandbox.MAX_STEPS", 50_000)
    with pytest.raises(RequestError, match="50,000 steps"):
        make(source).render(USER)


def test_a_slow_template_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftc.text.sandbox.MAX_SECONDS", 0.05)
    with pytest.raises(RequestError, match=r"0\.05 seconds"):
        make("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}").render(USER)


def test_threads_have_their_own_bounds(template: Template) -> None:
    expected, got = template.render(normalize(USER)), []

    def work() -> None:
        got.extend(template.render(normalize(USER)) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [expected] * 100


def test_the_syntax_in_force_is_read_from_the_template(template: Template) -> None:
    chat = Chat(tools=(XmlFunctions(), JsonInTags()))
    assert chat.tool_syntax(template.source) == JsonInTags()


def test_broken_arguments_reach_a_template_that_wants_objects() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}"
        "{{ k }}: {{ v }}{% endfor %}{% endfor %}{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "x'}}
    messages = normalize([*USER, {"role": "assistant", "tool_calls": [call]}])
    assert make(source).render(messages) == 'arguments: {"a": "x'


def test_every_refusal_is_one_of_ours(template: Template) -> None:
    with pytest.raises(FtcError):
        template.render([{"role": 5}], tools=[{"function": object()}])
