# SPDX-License-Identifier: Apache-2.0
"""Grammars over whole assistant turns, as xgrammar structural tags.

`template_format.turn_format` and `muse_format.MUSE` describe a wire format,
`request.constrain_request` puts the grammar of a turn on a request, `engine` holds what the
engine side needs. Nothing heavy is imported here.
"""
