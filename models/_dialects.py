"""Dialects of chat that several families speak, or that are long to write: marks of thinking and of tool calls."""

from __future__ import annotations

from ftc.spec import (
    CallList,
    CallObject,
    Channels,
    Chat,
    InvokeTags,
    JsonInTags,
    NestedTags,
    Reasoning,
    SectionCalls,
    TaggedPairs,
)

# A sign tells the dialect of one checkpoint by its template, so it is a text that every template of the dialect holds.
GLM = Chat(stop=("<|user|>", "<|observation|>"), reasoning=Reasoning(), tools=(TaggedPairs(),))
JSON_LIST = JsonInTags("<tool_calls>", "</tool_calls>", between="[,]", sign="<tool_calls>")
# Templates of this kind show '{"name"' too, where they describe calls behind a mark of another kind.
JSON_TAGGED = JsonInTags(sign="<tool_call>")
LLAMA = JsonInTags("<|python_tag|>", "", arguments_key="parameters", between=";", sign="<|python_tag|>")
LLAMA_LIST = CallList("[", "]", sign="func_name1(", declared_only=True)
MISTRAL = JsonInTags("[TOOL_CALLS]", "", between="[,]", sign="[TOOL_CALLS]")
GRANITE_LIST = JsonInTags("<|tool_call|>", "", between="[,]", sign="<|tool_call|>")
LFM = CallList("<|tool_call_start|>", "<|tool_call_end|>", sign="List of tools: ")
KIMI = SectionCalls(
    open="<|tool_calls_section_begin|>",
    close="<|tool_calls_section_end|>",
    call_open="<|tool_call_begin|>",
    arguments_open="<|tool_call_argument_begin|>",
    call_close="<|tool_call_end|>",
    sign="<|tool_calls_section_begin|>",
)
DEEPSEEK_PLAIN = SectionCalls(
    open="<｜tool▁calls▁begin｜>",
    close="<｜tool▁calls▁end｜>",
    call_open="<｜tool▁call▁begin｜>",
    arguments_open="<｜tool▁sep｜>",
    call_close="<｜tool▁call▁end｜>",
    sign="<｜tool▁sep｜>",
)
DEEPSEEK_FENCED = SectionCalls(
    open=DEEPSEEK_PLAIN.open,
    close=DEEPSEEK_PLAIN.close,
    call_open="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    arguments_open="\n```json\n",
    call_close="\n```<｜tool▁call▁end｜>",
    sign="```json",
)


def _dsml(outer: str, sign: str) -> InvokeTags:
    return InvokeTags(
        open=f"<｜DSML｜{outer}>",
        close=f"</｜DSML｜{outer}>",
        invoke_open='<｜DSML｜invoke name="',
        invoke_close="</｜DSML｜invoke>",
        parameter_open='<｜DSML｜parameter name="',
        parameter_close="</｜DSML｜parameter>",
        sign=sign,
    )


DSML = (_dsml("function_calls", "function_calls"), _dsml("tool_calls", "｜DSML｜"))
DEEPSEEK_V3 = Chat(reasoning=Reasoning(switch="thinking"), tools=(DEEPSEEK_FENCED, DEEPSEEK_PLAIN, KIMI, *DSML))
DEEPSEEK_V4 = Chat(reasoning=Reasoning(switch="thinking"), tools=DSML)
MINIMAX_M2 = Chat(
    stop=("[e~[",),
    reasoning=Reasoning(switch=None),
    tools=(InvokeTags("<minimax:tool_call>", "</minimax:tool_call>", sign="<minimax:tool_call>"),),
)
_M3 = "]<]minimax[>["
MINIMAX_M3 = Chat(
    reasoning=Reasoning("<mm:think>", "</mm:think>", switch=None),
    tools=(
        NestedTags(
            open=_M3 + "<tool_call>",
            close=_M3 + "</tool_call>",
            invoke_open=_M3 + '<invoke name="',
            invoke_close=_M3 + "</invoke>",
            prefix=_M3,
            sign=_M3,
        ),
    ),
)
GPT_OSS = Chat(stop=("<|return|>", "<|call|>"), tools=(Channels(),))
GEMMA_4 = Chat(stop=("<turn|>",), reasoning=Reasoning("<|channel>thought", "<channel|>"), tools=(CallObject(),))
MUSE = Chat(
    stop=("<|eot|>",),
    tools=(
        Channels(
            channel="",
            constrain="",
            ends=("<|eom|>", "<|eot|>"),
            reasoning=("self",),
            content=("user",),
            calls=InvokeTags(
                open="<atem:function_calls>",
                close="</atem:function_calls>",
                invoke_open='<atem:invoke name="',
                invoke_close="</atem:invoke>",
                parameter_open='<atem:parameter name="',
                parameter_close="</atem:parameter>",
            ),
            sign="<|message|>",
        ),
    ),
)
