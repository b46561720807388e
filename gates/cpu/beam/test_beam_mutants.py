# SPDX-License-Identifier: Apache-2.0
"""Every known fault must be seen by the check that is there for it; the signal is written to a table.

The table goes to the path in BEAM_MUTANTS_TABLE when it is set (docs/beam-mutants.md
is made so), and to the output of the run otherwise.
"""

import os
from pathlib import Path

import pytest
from harness import Harness
from mutants import MUTANTS
from step_checks import CHECKS, Pass

from gates.oracle.beam.model import BeamReference

HEAD = """# Faults the Beam gates must catch

Written by `gates/cpu/beam/test_beam_mutants.py`. Each fault changes the running model; the named check of
`gates/cpu/beam/step_checks.py` compares that step with the CPU reference on its own input. "Signal" is what the check
measured with the fault, "clean" without it, "limit" what it allows. Units: absolute difference for steps that must be
bit-equal, share of the largest value for `scores`, `experts` and FP8 `projections`, places for `expert_ids`, modules
for `wiring`.

| fault | check | clean | limit | signal |
|---|---|---|---|---|
"""


@pytest.fixture(scope="module")
def table():
    rows = []
    yield rows
    text = HEAD + "".join(rows)
    target = os.environ.get("BEAM_MUTANTS_TABLE")
    if target and len(rows) == len(MUTANTS):
        Path(target).write_text(text)
    print(text)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_fault_is_caught(mutant, checkpoint, tokens, run_pass, table):
    mode = "w8a8" if mutant.fp8 else "bf16"
    check = CHECKS[mutant.check]
    clean = check.measure(run_pass("grid8", 17, mutant.tokens, fp8=mutant.fp8))
    folder = checkpoint("grid8", 17, fp8=mutant.fp8)
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        signal = check.measure(Pass(Harness(folder), BeamReference(folder, mode), tokens(17, mutant.tokens)))
    limit = check.limit(mode)
    table.append(f"| {mutant.name} | `{mutant.check}` | {clean:.3g} | {limit:.3g} | {signal:.3g} |\n")
    assert clean <= limit < signal


def test_every_check_is_aimed_at_by_a_fault():
    assert {mutant.check for mutant in MUTANTS} == set(CHECKS)
