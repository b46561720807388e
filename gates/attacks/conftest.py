# SPDX-License-Identifier: Apache-2.0
"""The demo projects of gates/build serve here too."""

from gates.build.conftest import bare, demo, demo_maker, templates, tool

__all__ = ["bare", "demo", "demo_maker", "templates", "tool"]
