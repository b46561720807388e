# SPDX-License-Identifier: Apache-2.0
"""Beam: a response-template parser whose turns are held under the grammar that the template implies."""

from __future__ import annotations

from vllm.parser.response_template import ResponseTemplateParser, TemplateReasoningParser, TemplateToolParser
from vllm.parser.unified import UnifiedParser


class BeamReasoningParser(TemplateReasoningParser):
    @classmethod
    def unified_parser(cls) -> type[UnifiedParser]:
        return BeamParser


class BeamToolParser(TemplateToolParser):
    @classmethod
    def unified_parser(cls) -> type[UnifiedParser]:
        return BeamParser


class BeamParser(ResponseTemplateParser):
    reasoning_parser_cls = BeamReasoningParser
    tool_parser_cls = BeamToolParser
    format_name = "beam"
