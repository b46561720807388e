# SPDX-License-Identifier: Apache-2.0
"""Checks of the `quantization_config` section of config.json, as it stands in the file.

Early, since vLLM parses the section with bare assertions and drops parts of it
(attention groups, the scheme of the KV cache) without an error.
"""

import re
from collections.abc import Iterable
from typing import Any

from vllm_gaudi.models.config_values import ConfigError, shown

METHOD = "compressed-tensors"
FORMATS = ("float-quantized", "naive-quantized")  # both store E4M3 bytes as they are
SECTION = "quantization_config"
SCHEME: dict[str, dict[str, int | str]] = {
    "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False},
    "input_activations": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True},
}
# What compressed-tensors takes for a value that is left out.
DEFAULTS = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False}
# Entries that have no effect, as compressed-tensors 0.17 and transformers write them, and vLLM adds them when it reads.
IDLE = {"version", "quantization_status", "global_compression_ratio", "run_compressed"}
ADDED = {"total_num_heads", "total_num_kv_heads"}
# The same of a group's weights and activations: how scales were found.
IDLE_ARGS = {"observer": str, "observer_kwargs": dict, "zp_dtype": str}
# Entries of a group's weights and activations with one possible value, or more that say the same.
FIXED_ARGS: dict[str, tuple] = {
    "group_size": (None, -1),
    "block_structure": (None,),
    "actorder": (None, False),
    "scale_dtype": (None, "float32", "bfloat16", "float16"),
}
GROUP = {"targets", "weights", "input_activations", "output_activations", "format"}
FLAVOR = "float8_e4m3fn"
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
    method = section.get("quant_method") if isinstance(section, dict) else None
    _require(isinstance(method, str) and method, "must name its quant_method")  # vLLM gives one without it an empty one
    if method != METHOD:
        return  # refused when the server's arguments are checked, which may name another method
    for name, reason in ALIEN.items():
        dense = (
            name == "sparsity_config" and isinstance(section.get(name), dict) and section[name].get("format") == "dense"
        )
        _require(dense or not section.get(name), f".{name} is {shown(section.get(name))}; {reason}, set it to null")
    flavor = section.get("fp8_dtype_flavor")
    _require(
        flavor in (None, FLAVOR),
        f".fp8_dtype_flavor is {shown(flavor)}, whose bytes mean other values; Beam is served from {FLAVOR}",
    )
    known = {"quant_method", "format", "ignore", "config_groups", "fp8_dtype_flavor", *ALIEN, *IDLE, *ADDED}
    _refuse_unknown("", section, known)
    form = section.get("format", FORMATS[0])
    _require(form in FORMATS, f".format is {shown(form)}, Beam is served from {' or '.join(FORMATS)}")
    if section.get("ignore") is None:
        section["ignore"] = []
    _require(_strings(section["ignore"]), f".ignore must be a list of names, found {shown(section['ignore'])}")
    check_patterns("ignore", section["ignore"])
    groups = section.get("config_groups")
    _require(
        isinstance(groups, dict) and groups,
        f".config_groups is {shown(groups)}: nothing is quantised; set the section to null",
    )
    for name, group in groups.items():
        _check_group(f".config_groups.{name}", group)


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise ConfigError(SECTION + (message if message.startswith(".") else f" {message}"))


def _refuse_unknown(at: str, entries: dict, known: Iterable[str]) -> None:
    """Refuse entries that are none of the format's: one that is read by a later version may change the arithmetic."""
    unknown = [name for name in entries if name not in known and entries[name] is not None]
    _require(
        not unknown,
        f"{at}.{unknown[0] if unknown else ''} is no entry of the format and may change the arithmetic; set it to null "
        "if it has no effect on inference",
    )


def _strings(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(entry, str) and entry for entry in value)


def check_patterns(where: str, entries: Any) -> None:
    """Refuse entries after `re:` that are no regular expression. Raises ValueError."""
    for entry in entries:
        if entry.startswith("re:"):
            try:
                re.compile(entry.removeprefix("re:"))
            except (re.error, OverflowError, RecursionError) as error:
                raise ConfigError(f"{SECTION}.{where}: {shown(entry)} is no regular expression ({error})") from error


def _check_group(at: str, group: Any) -> None:
    _require(isinstance(group, dict), f"{at} must be a group of targets, found {shown(group)}")
    _refuse_unknown(at, group, GROUP)
    targets = group.get("targets")
    _require(_strings(targets) and targets, f"{at}.targets must be a list of names, found {shown(targets)}")
    check_patterns(f"{at.removeprefix('.')}.targets", targets)
    for target in targets:
        _require(
            target == "Linear" or target.startswith("re:") or "." in target,
            f"{at}.targets: {shown(target)} is no kind of module Beam quantises; use Linear, "
            "a module's name or re:pattern",
        )
    for part, wanted in SCHEME.items():
        found = group.get(part)
        _require(isinstance(found, dict), f"{at}.{part} is {shown(found)}; Beam has {_words(wanted)}")
        for name, right in wanted.items():
            value = found.get(name, DEFAULTS.get(name))
            _require(
                type(value) is type(right) and value == right,
                f"{at}.{part}.{name} is {shown(value)}; Beam has {_words(wanted)}",
            )
        _check_args(f"{at}.{part}", found)
    _require(not group.get("output_activations"), f"{at}.output_activations: Beam's outputs are not quantised")
    form = group.get("format") or FORMATS[0]
    _require(form in FORMATS, f"{at}.format is {shown(form)}, Beam is served from {' or '.join(FORMATS)}")


def _check_args(at: str, found: dict) -> None:
    """Entries beside those of the scheme: refused unless they say nothing else."""
    _refuse_unknown(at, found, {*DEFAULTS, "strategy", *FIXED_ARGS, *IDLE_ARGS})
    for name, possible in FIXED_ARGS.items():
        value = found.get(name)
        plain = value.removeprefix("torch.") if isinstance(value, str) else value
        words = " or ".join("null" if right is None else str(right).lower() for right in possible)
        same = any(type(plain) is type(right) and plain == right for right in possible)
        _require(same, f"{at}.{name} is {shown(value)}; Beam has {words}")
    for name, kind in IDLE_ARGS.items():
        value = found.get(name, kind())
        good = isinstance(value, kind) or (value is None and kind is str)
        _require(good, f"{at}.{name} must be {'a name' if kind is str else 'an object'}, found {shown(value)}")


def _words(wanted: dict[str, int | str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in wanted.items())
