# SPDX-License-Identifier: Apache-2.0
"""The turn format of Muse Spark Open: recipients in headers, ATEM bodies for calls.

The format is fixed by the tokenizer's marker tokens; the checkpoint carries no template for
it that a server could read, so the literals stand here.
"""

from __future__ import annotations

from vllm.parser.chat_format.muse_call import PARAMETER_NAME, VALUE_BREAKS, VALUE_ENDS
from vllm.parser.turn_grammar.wire_format import CallSyntax, ParameterSyntax, TurnFormat

START, MESSAGE, END_MESSAGE, END_TURN = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
END_OF_TEXT = "<|end_of_text|>"
ANCHOR = START + "assistant"
NEXT_MESSAGE = END_MESSAGE + ANCHOR

_PARAMETER = ParameterSyntax(
    begin='<atem:parameter name="',
    key=PARAMETER_NAME,
    middle='">',
    ends=(f"{VALUE_ENDS[0]}\n",),
    between="",
    # The parser forgives a closer without its line end, and takes the next call for the end of a value without one.
    stops=(VALUE_ENDS[0], *VALUE_BREAKS),
)

_CALL = CallSyntax(
    before=r" to=",
    begins=(" to=",),
    after=r"<\|message\|>",
    name=r"[A-Za-z0-9_.\-]+",
    name_class=None,
    body_begin='<atem:function_calls>\n<atem:invoke name="{name}">\n',
    body_end="</atem:invoke>\n</atem:function_calls>",
    closers=(END_TURN, NEXT_MESSAGE),
    separators=(NEXT_MESSAGE,),
    parameter=_PARAMETER,
    doubled=True,
    taken=frozenset({"self", "user", "commentary", "developer"}),
)

MUSE = TurnFormat(
    label="muse",
    anchors=r"<\|start\|>assistant",
    thinking=((" to=self<|message|>",), (NEXT_MESSAGE,)),
    answer=((" to=user<|message|>",), (END_TURN,)),
    call=_CALL,
    reserved=(START, MESSAGE, END_MESSAGE, END_TURN, END_OF_TEXT),
    preambles=(((" to=commentary<|message|>", " to=user<|message|>"), (NEXT_MESSAGE,)),),
    always_thinks=False,
    anchor_texts=(ANCHOR,),
)
