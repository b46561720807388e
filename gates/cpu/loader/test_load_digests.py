# SPDX-License-Identifier: Apache-2.0
"""The published digests are those of this build: a few cells always, all of them in the long run."""

import digest_table
import pytest

ROWS = digest_table.published(digest_table.DOC.read_text())
FEW = {("beam fp8", 2, True), ("muse mxfp4", 2, True)}


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


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=() if (row.checkpoint, row.tp, row.ep) in FEW else pytest.mark.long) for row in ROWS],
    ids=lambda row: f"{row.checkpoint}-tp{row.tp}-{'ep' if row.ep else 'tp'}",
)
def test_the_state_is_the_published_one(folder, row):
    path = folder(row.checkpoint)
    assert digest_table.files_digest(path) == row.files, "the generator makes other bytes; update the table"
    assert digest_table.state(path, row.tp, row.ep, stock=False) == row.state
