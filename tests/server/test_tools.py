"""Tools: in the prompt, and tool calls parsed from an answer."""

import json

import pytest

from graft.errors import InputError
from graft.server.schema import ChatRequest
from graft.server.tools import Call, CallReader, explain, offered, required_calls, required_schema

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
OSLO = Call("weather", '{"city": "Oslo"}')


def request(**fields):
    return ChatRequest(messages=[{"role": "user", "content": "?"}], tools=[WEATHER], **fields)


def read(text, size, most=None):
    reader, shown = CallReader(most), ""
    for start in range(0, len(text), size):
        shown += reader.push(text[start : start + size])[0]
    return shown + reader.finish(), reader.calls


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("no call <tool at all", "no call <tool at all", []),
        (CALL, "", [OSLO]),
        (f"Let me see. {CALL}\n{CALL}", "Let me see. ", [OSLO, OSLO]),
        (CALL.removesuffix("</tool_call>"), "", [OSLO]),
        ("<tool_call>not JSON</tool_call>", "<tool_call>not JSON</tool_call>", []),
        ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
        (
            '<tool_call>[{"name": "weather", "parameters": {"city": "Oslo"}}]</tool_call>',
            "",
            [OSLO],
        ),
        ("<tool_call>{", "<tool_call>{", []),
    ],
)
def test_calls_are_separated_from_text_however_it_is_chunked(text, shown, calls, size):
    assert read(text, size) == (shown, calls)


def test_calls_beyond_the_maximum_are_dropped():
    assert read(f"{CALL}\n{CALL}", 5, most=1)[1] == [OSLO]


def test_required_calls_have_a_schema_and_are_parsed():
    schema = required_schema(request(tool_choice="required", parallel_tool_calls=False))
    assert (schema["type"], schema["maxItems"]) == ("array", 1)
    text = json.dumps([{"name": "weather", "parameters": {"city": "Oslo"}}])
    assert required_calls(text, "required") == [OSLO]
    named = request(tool_choice={"type": "function", "function": {"name": "weather"}})
    assert required_schema(named) == WEATHER["function"]["parameters"]
    assert required_calls('{"city": "Oslo"}', named.tool_choice) == [OSLO]
    assert required_calls('{"city": "Os', named.tool_choice) == []
    assert required_schema(request()) is None


def test_tools_enter_the_prompt_unless_tool_choice_is_none():
    assert [tool.function.name for tool in offered(request())] == ["weather"]
    assert offered(request(tool_choice="none")) == []
    with pytest.raises(InputError, match="'other'"):
        offered(request(tool_choice={"type": "function", "function": {"name": "other"}}))


def test_a_template_without_tools_gets_them_in_messages():
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    system, assistant = explain(chat, offered(request()))
    assert system["content"].startswith("Be brief.")
    assert '"name": "weather"' in system["content"]
    assert assistant == {"role": "assistant", "content": CALL}
    assert explain(chat[1:], offered(request()))[0]["role"] == "system"
    assert explain(chat[:1], []) == chat[:1]
