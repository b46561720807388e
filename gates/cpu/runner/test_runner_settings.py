# SPDX-License-Identifier: Apache-2.0
"""The table of settings: defaults, refusals, near misses, and that each one is read somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vllm_gaudi.runtime import settings


def test_defaults_parse_and_match_the_dataclass() -> None:
    values = settings.parse({})
    assert {s.name.lower() for s in settings.SETTINGS} == set(vars(values))
    assert values.attention_workspace_bytes == 2 * 2**30
    assert values.prefill_share is None
    for text in ("0.75", "0.99", "1"):
        assert settings.parse({settings.PREFIX + "PREFILL_SHARE": text}).prefill_share == float(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EXACT_WINDOW", "yes"),
        ("ATTENTION_WORKSPACE_BYTES", "2GiB"),
        ("ATTENTION_WORKSPACE_BYTES", "-1"),
        ("RUN_AHEAD_DEPTH", "3"),
        ("PREFILL_SHARE", "0"),
        ("PREFILL_SHARE", "1.5"),
        ("PREFILL_SHARE", "0.999"),
        ("PREFILL_SHARE", "nan"),
        ("DECODE_LAYERS_PER_GRAPH", "-1"),
        ("DECODE_LAYERS_PER_GRAPH", "all"),
    ],
)
def test_refusal_names_variable_value_and_choices(name: str, value: str) -> None:
    with pytest.raises(settings.SettingError, match=f"{settings.PREFIX}{name}='{value}' is not accepted: set it to"):
        settings.parse({settings.PREFIX + name: value})


@pytest.mark.parametrize("setting", settings.SETTINGS, ids=lambda setting: setting.name)
@pytest.mark.parametrize("value", ["", "many", "-1", "nan", "-inf", "0x10", "1.5GiB", "on off"])
def test_what_no_setting_accepts(setting: settings.Setting, value: str) -> None:
    with pytest.raises(settings.SettingError, match=f"^{setting.variable}='{value}' is not accepted: set it to "):
        settings.parse({setting.variable: value})


@pytest.mark.parametrize("setting", settings.SETTINGS, ids=lambda setting: setting.name)
def test_zero_turns_off_or_is_refused(setting: settings.Setting) -> None:
    """Nothing that divides, sizes or counts can be zero."""
    if setting.parse in (settings._switch, settings._depth) or setting.name == "DECODE_LAYERS_PER_GRAPH":
        assert getattr(settings.parse({setting.variable: "0"}), setting.name.lower()) in (0, "off")
        return
    with pytest.raises(settings.SettingError):
        settings.parse({setting.variable: "0"})


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "qwen3_moe", "gemma3_text", "gemma4", "gpt_oss", "mixtral"])
def test_other_models_are_left_to_upstream(model_type: str) -> None:
    from types import SimpleNamespace

    from vllm_gaudi.runtime import gates

    text = SimpleNamespace(model_type=model_type)
    config = SimpleNamespace(model_config=SimpleNamespace(hf_config=text, hf_text_config=text))
    owner = SimpleNamespace(interleaved_sliding_window=True, vllm_config=config)
    found = (
        gates.exact_window(owner),
        gates.long_attention(config),
        gates.memory_margin(config),
        gates.run_ahead_depth(config),
        gates.decode_layers_per_graph(config),
        gates.prefill_share(config),
    )
    assert found == (False, False, False, 0, 1, 1.0)


def test_near_miss_is_refused() -> None:
    with pytest.raises(settings.SettingError, match="did you mean VLLM_GAUDI_FRONTIER_EXACT_WINDOW"):
        settings.parse({settings.PREFIX + "EXACT_WINDOWS": "on"})


@pytest.mark.parametrize("name", ["WORKSPACE_BYTES", "SHARE", "KV", "SOMETHING_ELSE"])
def test_unknown_name_with_the_prefix_is_refused(name: str) -> None:
    with pytest.raises(settings.SettingError, match=f"FRONTIER_{name} is not a setting: unset it; .*EXACT_WINDOW, "):
        settings.parse({settings.PREFIX + name: "1"})


def test_names_of_other_parts_are_known() -> None:
    """Every variable with the prefix that the tool or another part of the plug-in reads may be set beside these."""
    root = Path(__file__).parents[3]
    own = Path("overlay/vllm-gaudi/vllm_gaudi/runtime")
    files = [p for folder in ("scripts", "overlay") for p in (root / folder).rglob("*.py")]
    text = "".join(p.read_text() for p in files if own not in p.relative_to(root).parents)
    names = set(re.findall(rf"{settings.PREFIX}[A-Z_]+", text)) - {s.variable for s in settings.SETTINGS}
    assert len(names) > 3
    settings.parse(dict.fromkeys((n + "X" if n.endswith("_") else n for n in names), "1"))


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_GAUDI_FRONTER_EXACT_WINDOW",
        "VLLM_GUADI_FRONTIER_EXACT_WINDOW",
        "vllm_gaudi_frontier_exact_window",
        "VLLM_GAUDI_EXACT_WINDOW",
        "VLLM_EXACT_WINDOW",
        "VLLM_FRONTIER_EXACT_WINDOW",
    ],
)
def test_near_miss_of_the_prefix_is_refused(name: str) -> None:
    with pytest.raises(settings.SettingError, match=f"{name} .*did you mean VLLM_GAUDI_FRONTIER_EXACT_WINDOW"):
        settings.parse({name: "on"})


def test_variables_of_vllm_and_its_plugin_are_no_near_misses() -> None:
    from vllm import envs

    from vllm_gaudi import envs as plugin

    names = [*envs.environment_variables, *plugin.environment_variables]
    assert len(names) > 100
    settings.parse(dict.fromkeys(names, "1"))


def test_every_setting_is_read() -> None:
    folder = Path(settings.__file__).parent
    code = "\n".join(p.read_text() for p in folder.glob("*.py") if p.name != "settings.py")
    for setting in settings.SETTINGS:
        assert f".{setting.name.lower()}" in code, setting.name


def test_every_setting_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "runner.md").read_text()
    for setting in settings.SETTINGS:
        assert f"| `{setting.variable}` | `{setting.default}` | {setting.meaning} |" in text, setting.name
