# SPDX-License-Identifier: Apache-2.0
"""Effort, history and template identity, alone and through vLLM's own renderer."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import jinja2
import pytest
from turn_harness import request_of
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_tool_dicts
from vllm.exceptions import VLLMValidationError
from vllm.parser.chat_prompt.effort import SCALE, EffortLevels, map_effort, nearest
from vllm.parser.chat_prompt.history import mapping, prepared
from vllm.parser.chat_prompt.identity import model_card_fields, note_template, template_hash
from vllm.parser.chat_prompt.prepare import PROFILES, TemplateComplaint, prepare_prompt, profile_of
from vllm.renderers.params import ChatParams

from gates.checkpoints.muse_chat import CHAT_TEMPLATE

BEAM, MUSE = PROFILES["beam"].effort, PROFILES["muse"].effort
HI = [{"role": "user", "content": "Hi"}]


def config(model_type: str):
    return SimpleNamespace(hf_config=SimpleNamespace(model_type=model_type), model=f"/{model_type}")


def bare(model_type: str, parser: str | None = None):
    """As much of a renderer as `prepare_prompt` reads."""
    return SimpleNamespace(model_config=config(model_type), parser=SimpleNamespace(format_name=parser))


def test_profile_follows_the_parser_where_the_model_type_is_unknown():
    assert profile_of(bare("llama")) is None
    assert profile_of(bare("llama", "muse")) is PROFILES["muse"]
    assert profile_of(bare("beam", "muse")) is PROFILES["beam"]


@pytest.mark.parametrize(
    ("model", "expected"), [(BEAM, "low low low medium high high high"), (MUSE, "low low low medium high xhigh xhigh")]
)
def test_level_table(model, expected):
    """The table in the module's documentation."""
    got = [map_effort({"reasoning_effort": level}, model, False)[model.variable] for level in SCALE]
    assert got == expected.split()


def test_ties_go_to_the_higher_level():
    assert nearest("medium", ("low", "high")) == "high"


@pytest.mark.parametrize("value", ["", "hardest", 3, 1.5, [], {}, "None "])
def test_odd_levels_are_refused(value):
    if isinstance(value, str) and value.strip().lower() in SCALE:
        assert map_effort({"reasoning_effort": value}, BEAM, False)["reasoning_effort"] == "low"
        return
    with pytest.raises(VLLMValidationError) as caught:
        map_effort({"reasoning_effort": value}, BEAM, False)
    assert caught.value.parameter == "reasoning_effort"


@pytest.mark.parametrize(("value", "expected"), [(True, None), (False, "low"), ("HIGH", "high")])
def test_booleans_and_case(value, expected):
    assert map_effort({"reasoning_effort": value}, BEAM, False).get("reasoning_effort") == expected


def test_derived_thinking_switch_is_dropped_and_the_clients_own_kept():
    kwargs = {"reasoning_effort": "none", "enable_thinking": False}
    assert "enable_thinking" not in map_effort(kwargs, BEAM, False)
    assert map_effort(kwargs, BEAM, True)["enable_thinking"] is False


def test_levels_from_the_environment(monkeypatch):
    monkeypatch.setenv("VLLM_REASONING_EFFORT_LEVELS", "low, max")
    assert map_effort({"reasoning_effort": "xhigh"}, BEAM, False)["reasoning_effort"] == "max"
    monkeypatch.setenv("VLLM_REASONING_EFFORT_LEVELS", "much")
    with pytest.raises(ValueError, match="comma-separated"):
        EffortLevels("x", ("low",)).served()


def call(arguments, **fields):
    return {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}],
        **fields,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ("null", {}),
        ('{"city": "Par', {"city": "Par"}),
        ('{"a": 1, "b', {"a": 1}),
        ("not json", {}),
        ("{" * 5000, {}),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
    ],
)
def test_arguments_become_mappings(arguments, expected):
    got = mapping(arguments, "m")
    assert isinstance(got, dict)
    if arguments != "{" * 5000:
        assert got == expected


@pytest.mark.parametrize("arguments", ["[1]", "3", '"x"', [1], 7])
def test_arguments_of_another_kind_are_refused(arguments):
    with pytest.raises(VLLMValidationError, match="send a JSON object") as caught:
        prepared([call(arguments)], split_calls=False)
    assert caught.value.parameter == "messages"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_under_either_name_is_unchanged(name):
    text = " Let me\n\nthink <|end|> é🎉 "
    (message,) = prepared([{"role": "assistant", "content": "a", name: text}], split_calls=False)
    assert message == {"role": "assistant", "content": "a", "reasoning": text}


def test_reasoning_of_another_kind_is_refused():
    with pytest.raises(VLLMValidationError, match="send the text of `reasoning`"):
        prepared([{"role": "assistant", "reasoning": 3}], split_calls=False)


def test_content_beside_calls_and_result_names():
    messages = [
        call('{"a": 1}', content="Looking.", reasoning="r"),
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    together = prepared(messages, split_calls=False)
    assert together[0]["content"] == "Looking."
    assert together[1]["name"] == "f"
    apart = prepared(messages, split_calls=True)
    assert [sorted(message) for message in apart[:2]] == [["content", "reasoning", "role"], ["role", "tool_calls"]]
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'  # the request is not edited


def test_muse_tools_have_what_the_template_writes():
    tools = [{"type": "function", "function": {"name": "f", "description": None, "parameters": None}}]
    _, params = prepare_prompt(
        bare("muse_spark"), SimpleNamespace(), HI, ChatParams(chat_template_kwargs={"tools": tools})
    )
    assert params.chat_template_kwargs["tools"][0]["function"] == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }


@pytest.mark.parametrize("model", ["beam", "muse_spark"])
@pytest.mark.parametrize("extra", [{}, {"strict": True}], ids=["plain", "strict"])
def test_one_tool_is_one_prompt_through_each_api(model, extra):
    """A template that writes a tool's function as JSON wrote the Responses API's type and unset options, too."""
    function = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}, **extra}
    chat = [{"type": "function", "function": function}]
    asked = request_of({"tools": chat}, None)
    flat = ResponsesRequest(model="m", input="Hi", tools=[{"type": "function", "strict": None, **function}])
    written = []
    for tools in ([tool.model_dump() for tool in asked.tools], construct_tool_dicts(flat.tools, "auto")):
        params = ChatParams(chat_template_kwargs={"tools": tools})
        _, params = prepare_prompt(bare(model), SimpleNamespace(), HI, params)
        written.append(json.dumps(params.chat_template_kwargs["tools"]))
    assert written[0] == written[1] == json.dumps(chat)


def test_other_models_are_left_alone():
    messages, params = [{"role": "assistant", "reasoning": 3}], ChatParams()
    assert prepare_prompt(bare("llama"), SimpleNamespace(), messages, params) == (messages, params)


def test_template_hash_is_in_the_card():
    model = config("beam")
    assert model_card_fields(model) == {}
    note_template(model, SimpleNamespace(chat_template={"default": "own"}), None)
    assert model_card_fields(model) == {"chat_template_sha256": template_hash("own")}
    note_template(model, SimpleNamespace(chat_template="own"), "given")
    assert model_card_fields(model) == {"chat_template_sha256": template_hash("given")}


# --- through vLLM's own code: each of these fails without the patch ---


class Renderer:
    """Records what would be rendered."""

    tokenizer = SimpleNamespace(chat_template="t")

    def get_tokenizer(self):
        return self.tokenizer

    async def render_chat_async(self, conversations, params, *args, **kwargs):
        self.seen = conversations[0], params.chat_template_kwargs
        return [[]], [{"prompt_token_ids": [1]}]


def renderer_of(model_type: str):
    from vllm.renderers.online_renderer import OnlineRenderer

    model = config(model_type)
    model.multimodal_config, model.max_model_len, model.enable_prompt_embeds = None, 100, False
    return OnlineRenderer(
        model, Renderer(), request_logger=None, chat_template=None, chat_template_content_format="auto"
    )


def rendered(model_type: str, fields: dict, messages: list | None = None):
    made = renderer_of(model_type)
    request = request_of({**fields}, None)
    asyncio.run(made.preprocess_chat(request, messages or request.messages, None, "auto", None))
    return made.renderer.seen


def test_renderer_prepares_the_prompt():
    assert rendered("beam", {"reasoning_effort": "max"})[1]["reasoning_effort"] == "high"
    assert rendered("muse_spark", {"chat_template_kwargs": {"reasoning_effort": "max"}})[1]["reasoning_strength"] == (
        "xhigh"
    )
    messages, _ = rendered("beam", {}, [call('{"city": "Par', reasoning_content="r")])
    assert messages[0]["reasoning"] == "r"
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == {"city": "Par"}


@pytest.mark.parametrize("inside", [False, True], ids=["top level", "template arguments"])
def test_muse_prompts_differ_in_the_line_of_the_effort(inside):
    """The effort was lost on its way to the template."""

    def prompt(effort):
        given = {"reasoning_effort": effort}
        messages, arguments = rendered("muse_spark", {"chat_template_kwargs": given} if inside else given)
        return jinja2.Template(CHAT_TEMPLATE).render(messages=messages, **arguments)

    low, high = prompt("low"), prompt("high")
    assert low.replace("Reasoning strength: low", "Reasoning strength: high") == high != low


def test_renderer_notes_the_template():
    renderer_of("noted")
    assert model_card_fields(config("noted")) == {"chat_template_sha256": template_hash("t")}


def test_models_route_shows_the_hash():
    from vllm.entrypoints.openai.models.serving import BaseModelPath, OpenAIModelRegistry

    model = config("shown")
    model.max_model_len = 8
    note_template(model, SimpleNamespace(chat_template="t"), None)
    registry = OpenAIModelRegistry.__new__(OpenAIModelRegistry)
    registry.model_config, registry.base_model_paths = model, [BaseModelPath("n", "p")]
    (card,) = asyncio.run(registry.show_available_models()).data
    assert card.model_dump()["chat_template_sha256"] == template_hash("t")


def test_template_complaint_says_what_to_send():
    from vllm.entrypoints.serve.utils.error_response import create_error_response
    from vllm.renderers import hf

    class Tokenizer:
        chat_template = "{{ raise_exception('no') }}"

        def get_chat_template(self, *args, **kwargs):
            return self.chat_template

        def apply_chat_template(self, **kwargs):
            raise jinja2.TemplateError("assistant turn 2 lacks reasoning_content")

    with pytest.raises(TemplateComplaint, match="lacks reasoning_content") as caught:
        hf.safe_apply_chat_template(
            SimpleNamespace(
                hf_config=SimpleNamespace(model_type="beam"), trust_remote_code=False, model="m", tokenizer="m"
            ),
            Tokenizer(),
            [{"role": "user", "content": "Hi"}],
            chat_template=Tokenizer.chat_template,
            tokenize=False,
        )
    answer = create_error_response(caught.value)
    assert answer.error.code == 400
    assert "with its `reasoning`" in answer.error.message


def test_previous_response_is_continued_whole():
    """Reasoning and calls of a stored response reach the next prompt."""
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem
    from vllm.entrypoints.openai.responses.utils import construct_input_messages

    output = [
        ResponseReasoningItem(id="r", type="reasoning", summary=[], content=[{"type": "reasoning_text", "text": "R"}]),
        ResponseOutputMessage(
            id="m",
            type="message",
            role="assistant",
            status="completed",
            content=[{"type": "output_text", "text": "A", "annotations": []}],
        ),
        ResponseFunctionToolCall(type="function_call", call_id="c1", name="f", arguments='{"a": 1}'),
    ]
    messages = construct_input_messages(
        request_input="next", prev_msg=[{"role": "user", "content": "Hi"}], prev_response_output=output
    )
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["reasoning"] == "R"
    assert messages[1]["content"] == "A"
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
