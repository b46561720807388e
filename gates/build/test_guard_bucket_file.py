# SPDX-License-Identifier: Apache-2.0
"""Guard of the bucket-file patch: upstream's reader, run on files with lines that are no buckets."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType

import pytest

from gates.build import upstream_module

BAD = [
    "(1, 2",  # not closed
    "1, 128",  # two entries
    "[1, 128, 8]",  # no tuple
    "(1, 'x', 8)",  # text
    "(1, None, 8)",
    "(1, 2.5, 8)",  # would be cut to 2
    "(1, -128, 8)",
    "(1, True, 8)",  # a bool would count as 1, a decode bucket
    "(1, [], 8)",
    "(1, {[]: 1}, 8)",  # unhashable: TypeError out of literal_eval
    "(1, range(1, 99999999), 8)",  # longer than upstream expands
    "(1, __import__('os'), 8)",
    "(" * 5000,
]


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, real_trees: Path) -> ModuleType:
    upstream_module.bare_package(monkeypatch, upstream_module.tree())
    upstream_module.stub(monkeypatch, "vllm_gaudi.extension.runtime", get_config=lambda: None)
    return upstream_module.load("vllm_gaudi.extension.bucketing.file_strategy")


def test_malformed_lines_are_skipped(reader: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "buckets.txt"
    good = ["# comment", "", "(1, 128, 0)", "([2, 4], 1, range(8, 24, 8))"]
    file.write_text("\n".join([*good[:3], *BAD, good[3]]) + "\n")
    logging.getLogger("vllm").propagate = True
    with caplog.at_level("WARNING", logger="vllm"):
        prompts = reader.FileBucketingStrategy().get_buckets(str(file), True)
        decodes = reader.FileBucketingStrategy().get_buckets(str(file), False)
    assert prompts == [(1, 128, 0)]
    assert decodes == [(2, 1, 8), (2, 1, 16), (4, 1, 8), (4, 1, 16)]
    for number in range(len(BAD)):
        assert sum(f"line {number + 4} of bucket file {file}" in m for m in caplog.messages) == 2, BAD[number]


def test_good_file_gives_no_warning(reader: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "buckets.txt"
    file.write_text("(1, [128, 256], range(0, 3))\n")
    with caplog.at_level("WARNING", logger="vllm"):
        buckets = reader.FileBucketingStrategy().get_buckets(str(file), True)
    assert len(buckets) == 6
    assert not caplog.messages
