# SPDX-License-Identifier: Apache-2.0
"""The published digests are those of both loaders: a few cells always, all of them in the long run.

A row speaks for one lock. At another lock a state may rightly differ, so the default run then only compares the two
loaders; the long run names every state that has changed.
"""

import digest_table
import pytest
from digest_table import Row

ROWS = digest_table.published(digest_table.DOC.read_text())
FEW = [("beam fp8", 2, True), ("muse mxfp4", 2, True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Factory: name -> checkpoint."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = digest_table.write(name, tmp_path_factory.mktemp("digests") / name.replace(" ", "-"))
        return made[name]

    return make


def test_the_table_has_every_checkpoint_and_layout():
    cells = [(row.checkpoint, row.tp, row.ep) for row in ROWS]
    assert cells == [(name, *layout) for name in digest_table.CHECKPOINTS for layout in digest_table.LAYOUTS]
    assert len({row.state for row in ROWS}) == len(ROWS)
    assert all(len(row.lock) == 8 for row in ROWS)


@pytest.mark.parametrize(("name", "tp", "ep"), FEW)
def test_both_loaders_have_one_state_and_it_is_the_published_one(folder, name, tp, ep):
    path = folder(name)
    ours, stock = (digest_table.state(path, tp, ep, stock) for stock in (False, True))
    assert ours == stock
    row = digest_table.published_for(digest_table.files_digest(path), tp, ep)
    if row and row.lock == digest_table.lock():
        assert ours == row.state


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.checkpoint}-tp{row.tp}-{'ep' if row.ep else 'tp'}")
def test_every_state_is_the_published_one(folder, row):
    path = folder(row.checkpoint)
    files = digest_table.files_digest(path)
    now = Row(
        row.checkpoint, files, row.tp, row.ep, digest_table.state(path, row.tp, row.ep, False), digest_table.lock()
    )
    assert digest_table.difference(now) == ""


PUBLISHED = Row("beam fp8", "00aa", 2, True, "1234", "0123abcd")


@pytest.fixture
def document(tmp_path, monkeypatch):
    """A document whose table is one row, and states to be had for nothing: loader -> state."""
    states = {False: "1234", True: "1234"}
    path = tmp_path / "loader.md"
    path.write_text(f"# Head\n\n{digest_table.BEGIN}\n{digest_table.END}\n\nTail\n")
    monkeypatch.setattr(digest_table, "DOC", path)
    monkeypatch.setattr(digest_table, "LAYOUTS", [(2, True)])
    monkeypatch.setattr(digest_table, "write", lambda name, folder: folder)
    monkeypatch.setattr(digest_table, "files_digest", lambda folder: "00aa")
    monkeypatch.setattr(digest_table, "state", lambda folder, tp, ep, stock: states[stock])
    monkeypatch.setattr(digest_table, "lock", lambda: "0123abcd")
    digest_table.publish([PUBLISHED])
    return path, states


def run(*words):
    return digest_table.main([*words, "--checkpoint", "beam fp8"])


def test_a_state_that_is_not_the_published_one_is_reported(document, monkeypatch, capsys):
    """Control, and what is said when the row is of this lock, of another, or of other files."""
    _, states = document
    assert run("--check") == 0
    states[False] = "9999"
    assert run("--check") == 1
    assert capsys.readouterr().out.endswith("loader.md has 1234 at lock 0123abcd\n")
    assert run("--check", "--stock") == 0
    monkeypatch.setattr(digest_table, "lock", lambda: "ffffffff")
    assert run("--check") == 1
    assert "of another lock; if that change of state is meant, use --update" in capsys.readouterr().out
    monkeypatch.setattr(digest_table, "files_digest", lambda folder: "00bb")
    assert run("--check") == 1
    assert "not in loader.md" in capsys.readouterr().out


def test_only_what_both_loaders_agree_on_is_published(document, capsys):
    path, states = document
    before = path.read_text()
    states[False] = "9999"
    assert run("--update") == 1
    assert path.read_text() == before
    assert "nothing of beam fp8 is written" in capsys.readouterr().out
    states[True] = "9999"
    assert run("--update") == 0
    assert path.read_text() == before.replace("1234", "9999")
