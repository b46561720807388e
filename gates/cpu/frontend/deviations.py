# SPDX-License-Identifier: Apache-2.0
"""Where these parsers differ from the recorded ones on purpose. docs/parsers.md lists the same names and reasons.

A case is listed under what differs: the full parse, or the joined stream only. The value is what is intended instead.
"""

CUT_VALUE = "a value cut by the token limit was sent as far as it came; the full parse leaves the parameter out"
DUPLICATE = "what was sent cannot be taken back: the stream keeps the first value, the full parse the last"
UNCLOSED = "a value without closer was sent already and is closed with the call; the full parse leaves it out"
NO_MARKER = "output cut inside a marker or header shows no part of it"
TAGS = "a tool message is never shown as text where calls are parsed"
CUT_CALL = "a cut call is reported with the parameters it has, as Beam's is; its tags are not text"
NO_REASONING = "without a reasoning parser thinking is content, without its framing, in every mode"


def call(name, arguments):
    return {"name": name, "arguments": arguments}


def turn(reasoning=None, content=None, calls=()):
    return {"reasoning": reasoning, "content": content, "tool_calls": list(calls)}


_WEATHER = "get_weather"
_ECHO = (
    'Example: <atem:function_calls>\n<atem:invoke name="get_weather.get_weather">\n'
    '<atem:parameter name="city">Paris</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
)

MUSE_FULL = {
    "only_eot": (NO_MARKER, turn()),
    "trunc_in_header": (NO_MARKER, turn()),
    "trunc_in_eom": (NO_MARKER, turn("need weather")),
    "trunc_user_partial_marker": (NO_MARKER, turn(None, "Hello ")),
    "user_echoes_invoke": ("tags echoed in an answer are not a call", turn("t", _ECHO)),
    "call_alarm_py_bool": (
        "NaN is not JSON, so the value stays text",
        turn("t", None, [call("set_alarm", '{"enabled": "True", "ratio": "NaN", "hour": 7.0}')]),
    ),
    "malformed_no_name": (TAGS, turn("t")),
    "malformed_unframed_invoke": (TAGS, turn(None, None, [call(_WEATHER, '{"city": "Paris"}')])),
    "no_reasoning_parser": (NO_REASONING, turn(None, "tx")),
    "no_reasoning_parser_call": (NO_REASONING, turn(None, "t", [call(_WEATHER, '{"city": "Paris"}')])),
    "trunc_in_invoke": (CUT_CALL, turn("need weather")),
    "trunc_in_invoke_name": (CUT_CALL, turn("need weather")),
    "trunc_after_invoke": (CUT_CALL, turn("need weather", None, [call(_WEATHER, "{}")])),
    "trunc_in_param_name": (CUT_CALL, turn("need weather", None, [call(_WEATHER, "{}")])),
    "trunc_in_value": (CUT_CALL, turn("need weather", None, [call(_WEATHER, "{}")])),
    "trunc_between_params": (CUT_CALL, turn("need weather", None, [call(_WEATHER, '{"city": "Paris"}')])),
    "trunc_before_invoke_close": (
        CUT_CALL,
        turn("need weather", None, [call(_WEATHER, '{"city": "Paris", "days": 3}')]),
    ),
    "trunc_in_invoke_close": (
        CUT_CALL,
        turn("need weather", None, [call(_WEATHER, '{"city": "Paris", "days": 3}')]),
    ),
}

# name -> (reason, joined calls); None for the calls: the sent part ends inside the last value.
MUSE_STREAM = {
    "call_duplicate_param": (DUPLICATE, [call("write_file", '{"path": "a", "content": "c"}')]),
    "trunc_in_value": (CUT_VALUE, [call(_WEATHER, '{"city": "Par')]),
    "malformed_param_unclosed": (UNCLOSED, [call(_WEATHER, '{"city": "Paris"}')]),
}
BEAM_STREAM = {
    "call_duplicate_param": (DUPLICATE, [call("write_file", '{"path": "a", "content": "c"}')]),
    "trunc_in_param_close": (CUT_VALUE, [call(_WEATHER, '{"city": "Paris')]),
    "trunc_in_value_T2": (CUT_VALUE, [call(_WEATHER, '{"city": "Par')]),
    "trunc_long_value": (CUT_VALUE, None),
}
# Deltas that come earlier, or are cut differently, than recorded.
MUSE_DELTAS = {
    "self_contains_to_text": "text that cannot become a header any more is sent at once",
    "choice_none_call": "a tool message that is content streams with its header",
    "no_tools_call": "a tool message that is content streams with its header",
}
