# SPDX-License-Identifier: Apache-2.0
"""The README is true of this checkout: links, folders, targets, exit codes and variables it names exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from scripts.errors import Exit

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_folders_of_the_table_exist() -> None:
    table = README[README.index("| folder | what |") :].partition("\n\n")[0]
    named = re.findall(r"`([^`]+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:]))
    assert len(named) >= 8
    for path in named:
        assert (ROOT / path.partition("<")[0]).exists(), f"README names {path}"


def test_targets_that_are_named_exist() -> None:
    made = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.M))
    named = set(re.findall(r"(?:^    |&& |`)make ([a-z-]+)", README, flags=re.M))
    assert len(named) >= 8
    assert named <= made


def test_exit_codes_are_the_tools() -> None:
    text = README[README.index("Exit codes of the tool:") :].partition("Messages go")[0]
    assert sorted(map(int, re.findall(r"\b(\d+) [a-z]", text))) == sorted(map(int, Exit))


def test_variables_are_read_somewhere() -> None:
    """Every variable of the table is in the sources, whole or as a prefix."""
    table = README[README.index("| variable | meaning |") :].partition("\n\n")[0]
    names = re.findall(r"`…?([A-Z_]+)[*=a-z]*`", table)
    assert "VLLM_GAUDI_FRONTIER_CACHE" in names
    sources = "".join(
        path.read_text() for folder in ("scripts", "gates/hpusim") for path in sorted((ROOT / folder).rglob("*.py"))
    )
    for name in names:
        known = name in sources or name.startswith(("PIP_", "HTTPS_")) or "_SOURCE_" in name
        assert known, f"README names {name}"


def test_the_notice_the_model_licence_asks_for_is_prominent() -> None:
    assert "\nBuilt with Muse Spark Open.\n" in README.partition("\n## ")[0]


def test_text_of_the_project_names_no_machine() -> None:
    """Paths and hosts of whoever wrote a file are of no use to a reader."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    own = Path(__file__).name
    machine = re.compile(r"(?<![\w.])(/srv/|/work/|/home/(?!vllm\b)[a-z]|/root/)")
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.suffix in (".json", ".patch") or path.name == own or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            assert not machine.search(line), f"{name}:{number}: {line.strip()[:100]}"


def test_modules_the_makefile_runs_exist() -> None:
    found = set(re.findall(r"-m ((?:scripts|gates)[\w.]*)", (ROOT / "Makefile").read_text(encoding="utf-8")))
    assert len(found) >= 3
    missing = [name for name in sorted(found) if importlib.util.find_spec(name) is None]
    assert not missing, f"make would run what is not there: {missing}"
