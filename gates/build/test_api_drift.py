# SPDX-License-Identifier: Apache-2.0
"""The four static finders: each names its breakage, and stays silent on what still works."""

from __future__ import annotations

import pytest

from scripts.api_drift import Pair, find_drift
from scripts.python_index import Index

OLD = {
    "up/__init__.py": "from up.core import Thing as Renamed\nfrom .star import *\n",
    "up/core.py": """
class Root:
    def run(self, x, *, mode=None):
        pass

    def stop(self):
        pass

class Thing(Root):
    def __init__(self, size, skip_prefixes=None):
        self.shared_by = size

def helper(a, b=1):
    return a

try:
    fast = 1
except ImportError:
    fast = None
""",
    "up/star.py": "def starred():\n    pass\n",
    "up/gone.py": "def anything():\n    pass\n",
    "up/sub/__init__.py": "",
    "up/sub/leaf.py": "LEAF = 1\n",
    "up/lazy.py": "def __getattr__(name):\n    raise AttributeError\n",
}
NEW = {
    **OLD,
    "up/core.py": OLD["up/core.py"]
    .replace("def run(self, x, *, mode=None)", "def run(self, x, stale, *, mode=None)")
    .replace("    def stop(self):\n        pass\n", "")
    .replace("skip_prefixes=None", "layout")
    .replace("self.shared_by", "self.layers")
    .replace("def helper(a, b=1)", "def helper(a, c=1)"),
}
del NEW["up/gone.py"]
NEW["up/sub/leaf.py"] = "OTHER = 1\n"


def index(files: dict[str, str]) -> Index:
    return Index("up", {path: (lambda text=text: text.encode()) for path, text in files.items()})


def drift(source: str, path: str = "overlay/x/pkg/mod.py", **more: str) -> list[tuple[str, str, str]]:
    files = {path: source.encode(), **{f"overlay/x/{k}.py": v.encode() for k, v in more.items()}}
    return [(d.finder, d.what, d.place) for d in find_drift(Pair(index(OLD), index(NEW)), files)]


@pytest.mark.parametrize(
    ("source", "finder", "what"),
    [
        ("import up.gone", "import", "module up.gone is gone"),
        ("from up.gone import anything", "import", "up.gone no longer has anything (the module is gone)"),
        ("from up import gone", "import", "up no longer has gone"),
        ("def f():\n    from up.sub.leaf import LEAF", "import", "up.sub.leaf no longer has LEAF"),
        ("NAME = 'up.gone:anything'", "import", "up.gone:anything (named in a string) is gone"),
        (
            "from up.core import Thing\nclass Mine(Thing):\n    def run(self, x, *, mode=None):\n        pass",
            "base signature",
            "Thing.run: upstream added stale",
        ),
        (
            "from up import Renamed\nclass Mine(Renamed):\n    def stop(self):\n        pass",
            "base signature",
            "Renamed.stop: upstream no longer has the method",
        ),
        (
            "from up.core import fast\ny = tensor.shared_by",
            "vanished name",
            "`shared_by` no longer occurs in the package",
        ),
        ("from up.core import fast\nf(shared_by=1)", "vanished name", "`shared_by` no longer occurs in the package"),
        ("from up.core import helper\nhelper(1, b=2)", "call keyword", "helper() no longer takes b"),
        ("from up.core import Thing\nThing(1)", "call keyword", "Thing() now requires layout"),
    ],
)
def test_named(source: str, finder: str, what: str) -> None:
    found = drift(source)
    assert (finder, what) in [(f, w) for f, w, _ in found], found
    assert all(place.startswith("overlay/x/pkg/mod.py:") for _, _, place in found)


@pytest.mark.parametrize(
    "source",
    [
        "from up.core import Thing, helper, fast\nfrom up import starred, Renamed\nfrom up.lazy import whatever",
        "from up.core import absent_in_both",
        "from up.core import helper\nhelper(1)\nhelper(a=1)\nhelper(*args, **kw)",
        "from up.core import Thing\nThing(1, layout=2)\nThing(**options)",
        "from up.core import Thing\nclass Mine(Thing):\n    def run(self, x, *rest, **kw):\n        pass",
        "from up.core import Thing\nclass Mine(Thing):\n    def __init__(self):\n        pass",
        "from up.core import fast\nself.shared_by = 1\nprint(self.shared_by)",  # a name of our own
        "import other\nother.shared_by",  # does not use the package at all
        "from up.core import (",  # not parseable: another gate's business
        "from other.gone import anything",
    ],
)
def test_silent(source: str) -> None:
    assert drift(source) == []


def test_relative_imports_are_resolved_from_where_the_file_goes() -> None:
    assert drift("from ..gone import anything", "overlay/x/up/own/mod.py")
    assert drift("from .gone import anything", "x/up/mod.py")
    assert not drift("from .gone import anything", "overlay/x/up/own/mod.py")


def test_no_difference_no_drift() -> None:
    same = Pair(index(OLD), index(OLD))
    assert (
        find_drift(same, {"overlay/x/m.py": b"import up.gone\nfrom up.core import Thing\nThing(1, skip_prefixes=2)\n"})
        == []
    )
