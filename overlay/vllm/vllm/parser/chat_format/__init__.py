# SPDX-License-Identifier: Apache-2.0
"""Chat output formats: reading a model's turn as reasoning, answer and tool calls.

Pure Python on the `regex` library: nothing here imports torch or the rest of vLLM, so the front end, the engine process
and the tests share it at no cost.
"""
