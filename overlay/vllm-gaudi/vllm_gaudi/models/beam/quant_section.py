# SPDX-License-Identifier: Apache-2.0
"""Checks of the `quantization_config` section of config.json, as it stands in the file.

Early, since vLLM parses the section with bare assertions and drops parts of it
(attention groups, the scheme of the KV cache) without an error.
"""

import re
from typing import Any

METHOD = "compressed-tensors"
FORMATS = ("float-quantized", "naive-quantized")  # both store E4M3 bytes as they are
WHERE = "config.json: quantization_config"
SCHEME: dict[str, dict[str, int | str]] = {
    "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False},
    "input_activations": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True},
}
# What compressed-tensors takes for a value that is left out.
DEFAULTS = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False}
ALIEN = {
    "kv_cache_scheme": "Beam's KV cache is BF16",
    "transform_config": "Beam's matrices are not rotated",
    "sparsity_config": "Beam's matrices are dense",
}

# Ends of tensor names that static, grouped, block-wise or cache quantisation adds.
OTHER_SCHEMES = (
    ".input_scale",
    ".output_scale",
    ".k_scale",
    ".v_scale",
    ".weight_global_scale",
    ".weight_packed",
    ".weight_scale_2",
    ".weight_scale_inv",
    ".weight_shape",
    ".weight_zero_point",
)


def check_section(section: Any) -> None:
    """Refuse a section Beam cannot be served by; an ignore list of null becomes an empty one, as vLLM needs it.

    Raises:
        ValueError: naming the entry, what it holds and what is possible.
    """
    if section is None:
        return
    _require(isinstance(section, dict) and isinstance(section.get("quant_method"), str), "must name its quant_method")
    if section["quant_method"] != METHOD:
        return  # refused when the server's arguments are checked, which may name another method
    for name, reason in ALIEN.items():
        _require(not section.get(name), f".{name} is {section.get(name)!r}; {reason}, set it to null")
    form = section.get("format", FORMATS[0])
    _require(form in FORMATS, f".format is {form!r}, Beam is served from {' or '.join(FORMATS)}")
    if section.get("ignore") is None:
        section["ignore"] = []
    _require(_strings(section["ignore"]), f".ignore must be a list of names, found {section['ignore']!r}")
    check_patterns("ignore", section["ignore"])
    groups = section.get("config_groups")
    _require(
        isinstance(groups, dict) and groups,
        f".config_groups is {groups!r}: nothing is quantised; set the section to null",
    )
    for name, group in groups.items():
        _check_group(f".config_groups.{name}", group)


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise ValueError(WHERE + (message if message.startswith(".") else f" {message}"))


def _strings(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(entry, str) and entry for entry in value)


def check_patterns(where: str, entries: Any) -> None:
    """Refuse entries after `re:` that are no regular expression. Raises ValueError."""
    for entry in entries:
        if entry.startswith("re:"):
            try:
                re.compile(entry.removeprefix("re:"))
            except re.error as error:
                raise ValueError(f"{WHERE}.{where}: {entry!r} is no regular expression ({error})") from error


def _check_group(at: str, group: Any) -> None:
    _require(isinstance(group, dict), f"{at} must be a group of targets, found {group!r}")
    targets = group.get("targets")
    _require(_strings(targets) and targets, f"{at}.targets must be a list of names, found {targets!r}")
    check_patterns(f"{at.removeprefix('.')}.targets", targets)
    for target in targets:
        _require(
            target == "Linear" or target.startswith("re:") or "." in target,
            f"{at}.targets: {target!r} is no kind of module Beam quantises; use Linear, a module's name or re:pattern",
        )
    for part, wanted in SCHEME.items():
        found = group.get(part)
        _require(isinstance(found, dict), f"{at}.{part} is {found!r}; Beam has {_words(wanted)}")
        for name, right in wanted.items():
            value = found.get(name, DEFAULTS.get(name))
            _require(
                type(value) is type(right) and value == right,
                f"{at}.{part}.{name} is {value!r}; Beam has {_words(wanted)}",
            )
    _require(not group.get("output_activations"), f"{at}.output_activations: Beam's outputs are not quantised")
    form = group.get("format") or FORMATS[0]
    _require(form in FORMATS, f"{at}.format is {form!r}, Beam is served from {' or '.join(FORMATS)}")


def _words(wanted: dict[str, int | str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in wanted.items())
