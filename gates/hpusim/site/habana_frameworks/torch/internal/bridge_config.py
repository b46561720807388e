# SPDX-License-Identifier: Apache-2.0
"""Settings of the bridge."""

from gates.hpusim.bridge import env_setting, get_pt_compile_only_mode, set_pt_compile_only_mode

__all__ = ["env_setting", "get_pt_compile_only_mode", "set_pt_compile_only_mode"]
