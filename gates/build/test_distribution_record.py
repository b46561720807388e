# SPDX-License-Identifier: Apache-2.0
"""The record of an installation: read without torch or vllm, logged once, honest when it is missing or foreign."""

from __future__ import annotations

import importlib.util
import json
import logging
import multiprocessing
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "overlay/vllm-gaudi/vllm_gaudi/distribution/record.py"
RECORD = {
    "name": "vllm-gaudi-frontier",
    "version": "0.26.0+frontier.abcdef12",
    "lock_hash": "abcdef12" * 8,
    "upstreams": [
        {"name": "vllm", "version": "0.26.0", "patches": []},
        {"name": "vllm-gaudi", "version": "0.26.0", "patches": [{"name": "one"}, {"name": "two"}]},
    ],
}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A fresh copy of the module, with both packages installed from one lock in a folder of their own."""
    for name in ("vllm", "vllm_gaudi"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the record must not import this')\n")
        (tmp_path / name / "distribution.json").write_text(json.dumps(RECORD))
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.spec_from_file_location("record_under_test", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_line_once(record: types.ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        record.log_once()
        record.log_once()
    assert [entry.getMessage() for entry in caplog.records] == [
        "vllm-gaudi-frontier 0.26.0+frontier.abcdef12 (lock abcdef12abcd; vllm 0.26.0 + 0 patches; "
        "vllm-gaudi 0.26.0 + 2 patches). Built with Muse Spark Open."
    ]
    assert caplog.records[0].name.startswith("vllm."), "below the logger whose handlers the server sets up"


def test_workers_stay_silent(
    record: types.ModuleType, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    with caplog.at_level(logging.INFO):
        record.log_once()
    assert not caplog.records


@pytest.mark.parametrize("package", ["vllm", "vllm_gaudi"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "was not installed from a wheel of `make wheels`"),
        ("{", "is not readable JSON"),
        (json.dumps({**RECORD, "lock_hash": "0" * 64}), "come from different locks"),
    ],
    ids=["missing", "damaged", "of another lock"],
)
def test_a_wrong_record_warns_and_lets_the_server_start(
    record: types.ModuleType,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    package: str,
    content: str | None,
    says: str,
) -> None:
    path = tmp_path / package / "distribution.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(record.RecordError, match=says):
        record.pair()
    record.log_once()
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert says in caplog.records[0].getMessage()


def test_a_package_that_is_not_there_is_named(record: types.ModuleType) -> None:
    with pytest.raises(record.RecordError, match="nothing_here is not installed"):
        record.load("nothing_here")
