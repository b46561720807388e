# SPDX-License-Identifier: Apache-2.0
"""docs/upstream: one text per generic fix of vllm-gaudi, ready to be sent, named by its patch's Forwarded field."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRAFTS = ROOT / "docs" / "upstream"
# Without a patch of their own: what nothing served needs, and what the scheduler of the prefill share does besides.
FINDINGS = {"docs/upstream/preempted-blocks.md", "docs/upstream/transformers-sdpa.md"}
SECTIONS = ["Symptom", "Evidence", "Idea of the change"]


def forwarded(root: Path, upstream: str = "*") -> dict[str, str]:
    """Patch name -> its Forwarded field."""
    found = {}
    for patch in root.glob(f"patches/{upstream}/*.patch"):
        head = patch.read_text(encoding="utf-8").partition("\n\n")[0]
        found[patch.stem] = re.search(r"^Forwarded: (.*)$", head, re.MULTILINE)[1]
    return found


def problems(root: Path) -> list[str]:
    """What is missing: drafts without a patch or with two, names without a draft, fixes that name none."""
    named = forwarded(root)
    drafts = {f"docs/upstream/{path.name}" for path in (root / "docs" / "upstream").glob("*.md")}
    uses = Counter(value for value in named.values() if value.startswith("docs/"))
    found = [f"{draft}: no patch names it" for draft in sorted(drafts - uses.keys() - FINDINGS)]
    found += [f"{draft}: named but not there" for draft in sorted(uses.keys() - drafts)]
    found += [f"{draft}: named by {count} patches" for draft, count in uses.items() if count > 1]
    fixes = forwarded(root, "vllm-gaudi")
    return found + [f"{name}: a fix without a draft" for name, value in fixes.items() if value == "no"]


def test_every_generic_fix_has_its_draft() -> None:
    assert problems(ROOT) == []


@pytest.mark.parametrize("draft", sorted(DRAFTS.glob("*.md")), ids=lambda path: path.stem)
def test_draft_is_ready_to_be_sent(draft: Path) -> None:
    text = draft.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    parts = re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]
    assert all(len(part.split()) >= 5 for part in parts), "no empty section"
    assert "Seen on vllm-gaudi v0.26.0 (b059f9c9)" in text, "says which version it was seen on"
    assert "frontier" not in text.lower(), "a reader upstream does not know this distribution"


def test_what_is_missing_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "patches" / "vllm-gaudi"
    folder.mkdir(parents=True)
    (tmp_path / "docs" / "upstream").mkdir(parents=True)
    (tmp_path / "docs" / "upstream" / "orphan.md").write_text("# x\n")
    for name, value in {"a": "docs/upstream/gone.md", "b": "docs/upstream/gone.md", "c": "no"}.items():
        (folder / f"{name}.patch").write_text(f"Subject: {name}\nForwarded: {value}\n\ndiff\n")
    assert problems(tmp_path) == [
        "docs/upstream/orphan.md: no patch names it",
        "docs/upstream/gone.md: named but not there",
        "docs/upstream/gone.md: named by 2 patches",
        "c: a fix without a draft",
    ]
