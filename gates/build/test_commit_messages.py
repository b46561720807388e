# SPDX-License-Identifier: Apache-2.0
"""The text of a commit on its way to a patch header: every line is kept, or named and nothing is written."""

from __future__ import annotations

import pytest

from gates.build.demo import FIELDS, Demo, Tool, git
from scripts import header

REST = FIELDS.partition("\n")[2]


def exported(demo: Demo, tool: Tool, body: str) -> str:
    """The header of the patch that a commit with this message becomes; what it is stays what it is from then on."""
    demo.change(demo.edit("b.txt", b"one\n", b"1\n"), "Words", fields=body)
    tool.ok(demo, "export")
    text = (demo.patches / "words.patch").read_text()
    assert tool.ok(demo, "export") == ""
    tool.ok(demo, "lock")
    tool.ok(demo, "verify")
    return text.partition("\n\n")[0]


KEPT = {
    "prose before the fields": (f"Why we do it.\n\n{FIELDS}", "Description: why\n .\n Why we do it.\n"),
    "prose alone": (f"Why.\nMore of it.\n\nAnd more.\n\n{REST}", "Description: Why.\n More of it.\n .\n And more.\n"),
    "second paragraph": (
        f"Description: why\n\nAnd more:\n  code\n\n{REST}",
        "Description: why\n .\n And more:\n   code\n",
    ),
    "indented paragraph": (f"Description: why\n\n code\n\n{REST}", "Description: why\n .\n code\n"),
    "prose at the end": (f"{FIELDS}\nLast words.\n", "Description: why\n .\n Last words.\n"),
    "prose with a colon": (f"It is so.\nNote: odd.\n\n{REST}", "Description: It is so.\n Note: odd.\n"),
    "trailers": (
        f"{FIELDS}Signed-off-by: A <a@invalid>\nSigned-off-by: B <b@invalid>\nReviewed-by: C <c@invalid>\n",
        "\nSigned-off-by: A <a@invalid>\nSigned-off-by: B <b@invalid>\nReviewed-by: C <c@invalid>",
    ),
    "a field twice with one value": (f"{FIELDS}Origin: vendor\n", "\nOrigin: vendor\n"),
    "author in the message": (f"{FIELDS}Author: O <o@invalid>\n", "\nAuthor: O <o@invalid>\n"),
}


@pytest.mark.parametrize("kind", list(KEPT))
def test_kept(kind: str, demo: Demo, tool: Tool) -> None:
    body, expected = KEPT[kind]
    text = exported(demo, tool, body)
    assert expected in text, text


REFUSED = {
    "unknown field": (f"{FIELDS}Bugs: https://example.org/1\n", "Bugs: https://example.org/1"),
    "text directly below a field": (f"{FIELDS}goes on here\n", "goes on here"),
    "a field twice": (f"{FIELDS}Origin: backport\n", "Origin: backport"),
    "a second name": (f"{FIELDS}Patch-Name: one\nPatch-Name: two\n", "Patch-Name: two"),
    "a second subject": (f"Subject: other\n{FIELDS}", "Subject: other"),
}


@pytest.mark.parametrize("kind", list(REFUSED))
def test_refused_with_nothing_changed(kind: str, demo: Demo, tool: Tool) -> None:
    body, named = REFUSED[kind]
    demo.change(demo.edit("b.txt", b"one\n", b"1\n"), "Words", fields=body)
    before, head = demo.snapshot(), git(demo.tree, "rev-parse", "HEAD")
    error = tool.refused(demo, "export", code=6)
    assert named in error
    assert head[:12] in error
    assert demo.snapshot() == before
    assert git(demo.tree, "rev-parse", "HEAD") == head


def test_no_word_of_a_message_is_lost() -> None:
    """Whatever order paragraphs and fields stand in, each word is in the header or in the refusal."""
    parts = ["alpha one\nalpha two", "Description: beta", "Removal: gamma\n delta", "Bugs: epsilon",
             "Signed-off-by: zeta", "  eta", "Note: theta\niota", "Patch-Name: kappa"]  # fmt: skip
    words = ["alpha", "one", "two", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
    for turn in range(len(parts)):
        for joint in ("\n", "\n\n"):
            chosen = parts[turn:] + parts[:turn]
            for left in range(len(chosen)):
                message = "Subject\n\n" + joint.join(chosen[:left] + chosen[left + 1 :])
                try:
                    found, name = header.from_message(message)
                    text = "\n".join([*found.lines(), name or ""])
                except ValueError as exc:
                    # What is named is refused as a whole: nothing was dropped without a word.
                    text = message if str(exc) else ""
                missing = [word for word in words if word in message.split() and word not in text.split()]
                assert not missing, (message, text)


def test_overlay_commit_with_text_of_its_own_is_noted(demo: Demo, tool: Tool) -> None:
    demo.change({"own/more.txt": b"x\n"}, "Why this file", fields="It is needed.\n")
    done = tool.run(demo, "export")
    assert done.code == 0
    assert "Why this file" in done.err
