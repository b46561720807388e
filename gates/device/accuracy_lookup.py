# SPDX-License-Identifier: Apache-2.0
"""A look-up task of the gates' own wording through lm-evaluation-harness: it needs no hub, and tiny models can do it.

The harness asks, reads and scores as for its own tasks. Where this gate passes and one on a published task is SKIPped,
the data set is all that is missing.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from gates.core import harness, prompts
from gates.core.gate import Context, Gate, judge
from gates.core.load import Asked
from gates.core.result import GateResult
from gates.device import ruler

NAME, TASK = "accuracy-lookup", "frontier_lookup"
# What the stand-in and the tiny models write behind a value; a chat model ends its turn itself.
ENDS = (";", ".")


def _rung(ctx: Context) -> int:
    return ctx.lengths(ctx.profile.rungs, reserve=ctx.profile.answer_tokens + 64)[0]


def asks(ctx: Context) -> list[Asked]:
    """What the harness sends, where there is one."""
    harness.interpreter()
    return [Asked(_rung(ctx), ctx.profile.answer_tokens, 4 * ctx.profile.samples, ctx.profile.concurrency)]


def documents(ctx: Context) -> list[dict[str, str]]:
    """{"prompt", "value"} of each item: eight facts of one form among filler, and the question for one."""
    rung = _rung(ctx)

    def one(seed: int) -> dict[str, str]:
        facts, question, value, _ = ruler.multi_key(ctx, random.Random(seed))
        text = prompts.with_facts(ctx.client, ctx.wording, tokens=rung, facts=facts, seed=seed, tail=question)
        return {"prompt": text, "value": value}

    return ctx.client.map(one, [ctx.seed(23 * i) for i in range(4 * ctx.profile.samples)])


def definition(data: Path) -> dict[str, Any]:
    """The harness's description of the task: the first number of an answer is the one it names."""
    number = {"function": "regex", "regex_pattern": r"(\d+)"}
    return {
        "task": TASK,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{value}}",
        "target_delimiter": "",
        "num_fewshot": 0,
        "generation_kwargs": {"do_sample": False, "temperature": 0.0, "until": []},
        "filter_list": [{"name": "first-number", "filter": [number, {"function": "take_first"}]}],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }


def _run(ctx: Context) -> GateResult:
    harness.interpreter()  # before the server is asked for anything
    items = documents(ctx)

    def write(folder: Path) -> None:
        data = folder / "lookup.jsonl"
        data.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
        # JSON is YAML, too.
        (folder / "lookup.yaml").write_text(json.dumps(definition(data)), encoding="utf-8")

    chat = ctx.wording.chat
    task = harness.Task(
        TASK,
        "exact_match,first-number",
        len(items),
        ctx.profile.answer_tokens,
        chat=chat,
        until=() if chat else ENDS,
        write=write,
    )
    score, details = harness.run(ctx, NAME, task)
    return judge(ctx, NAME, score.measurement(), details={**details, "wording": ctx.wording.name})


GATE = Gate(
    NAME,
    "quality",
    "facts looked up through lm-evaluation-harness, where it is installed; needs no hub",
    _run,
    ("blind-context",),
    asks,
)
