# SPDX-License-Identifier: Apache-2.0
"""Quark's MXFP4 export of Muse Spark: packed E2M1 weights of the routed experts, one E8M0 scale per 32 columns.

Claims a checkpoint only when its method is `quark` and its model is Muse Spark, so every other Quark checkpoint
keeps vLLM's own handling. Experts run W4A16: the activation part of the section is not used.
"""

import fnmatch
import re
from typing import Any

import torch
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase

from vllm_gaudi.models.beam.quant_section import SECTION, check_patterns
from vllm_gaudi.models.config_values import require, shown

NAME = "muse_quark_mxfp4"
GROUP = 32
MODEL_TYPES = ("muse_spark", "muse_spark_text")
WEIGHT = {"dtype": "fp4", "qscheme": "per_group", "group_size": GROUP, "scale_format": "e8m0", "is_dynamic": False}
# What may be left out, but not say otherwise: groups run along a row, whose scales are the only ones.
WEIGHT_IF_GIVEN = {
    "ch_axis": (-1, 1),
    "is_scale_quant": (False,),
    "mx_element_dtype": (None, "fp4"),
    "symmetric": (None, True),
}
# How scales were found, which changes nothing of how they are used.
WEIGHT_IDLE = {"observer_cls", "scale_calculation_mode", "scale_type", "round_method", "zero_point_type"}
GLOBAL = {"weight", "input_tensors", "output_tensors", "bias", "target_device"}
SECTION_KEYS = {
    "quant_method",
    "quant_mode",
    "version",
    "algo_config",
    "softmax_quant_spec",
    "layer_quant_config",
    "layer_type_quant_config",
    "kv_cache_quant_config",
    "global_quant_config",
    "exclude",
    "export",
}
UNSUPPORTED = ("layer_quant_config", "layer_type_quant_config", "kv_cache_quant_config", "softmax_quant_spec")

# The text model's place: in the checkpoint, in other exports and servers, and alone.
PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.", "")
# A checkpoint's module -> the name under which a server merges it with its neighbours.
MERGED = (
    (re.compile(r"(.*self_attn\.)[qkv]_proj"), r"\1qkv_proj"),
    (re.compile(r"(.*self_attn\.)gate_proj"), r"\1output_gate_proj"),
    (re.compile(r"(.*mlp\.(?:experts\.\d+\.)?)(?:gate|up)_proj"), r"\1gate_up_proj"),
    (re.compile(r"(.*mlp\.experts\.)\d+\.(?:gate|up)_proj"), r"\1gate_up_proj"),
    (re.compile(r"(.*mlp\.experts\.)\d+\.down_proj"), r"\1down_proj"),
)


def spellings(module: str) -> list[str]:
    """Names by which an export or another server may call `module` of the text model."""
    tail = next(module.removeprefix(prefix) for prefix in PREFIXES if module.startswith(prefix))
    tails = [tail, *(pattern.sub(name, tail) for pattern, name in MERGED if pattern.fullmatch(tail))]
    return [prefix + name for name in tails for prefix in PREFIXES]


class QuarkMxfp4Config(QuantizationConfig):
    """What the `quantization_config` of a checkpoint says about its modules.

    Args:
        exclude: module names (with all below them), globs or `re:` patterns that are not quantised.
    """

    def __init__(self, exclude: list[str]) -> None:
        super().__init__()
        self.exclude = exclude
        # Quark's own lists hold globs, vLLM's `re:` patterns; a plain name stands for all below it as well.
        globs = [entry for entry in exclude if not entry.startswith("re:") and any(sign in entry for sign in "*?[")]
        self._patterns = [re.compile(entry[3:]) for entry in exclude if entry.startswith("re:")]
        self._patterns += [re.compile(fnmatch.translate(entry)) for entry in globs]
        self._names = {entry for entry in exclude if not entry.startswith("re:")} - set(globs)

    def get_name(self) -> str:
        return NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        return -1

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg, user_quant, hf_config=None) -> str | None:
        """NAME for a Quark checkpoint of Muse Spark, else None."""
        is_quark = bool(hf_quant_cfg) and str(hf_quant_cfg.get("quant_method", "")).lower() == "quark"
        return NAME if is_quark and getattr(hf_config, "model_type", None) in MODEL_TYPES else None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "QuarkMxfp4Config":
        """From the section. Raises ConfigError naming the first entry that is not plain MXFP4."""
        for entry in UNSUPPORTED:
            require(
                not config.get(entry), f"{SECTION}.{entry} is set; Muse Spark is served with one scheme, of weights"
            )
        _refuse_others(config, SECTION_KEYS, "")
        algorithms = config.get("algo_config")
        turned = any(word in str(algorithms).lower() for word in ("rotat", "quarot"))
        require(not turned, f"{SECTION}.algo_config is {shown(algorithms)}; rotated activations are not served")
        scheme = _object(config, "global_quant_config")
        _refuse_others(scheme, GLOBAL, ".global_quant_config")
        for entry in ("output_tensors", "bias"):
            require(
                not scheme.get(entry), f"{SECTION}.global_quant_config.{entry} is set; only weights are quantised here"
            )
        weight = _object(scheme, "weight", ".global_quant_config")
        _refuse_others(weight, {*WEIGHT, *WEIGHT_IF_GIVEN, *WEIGHT_IDLE}, ".global_quant_config.weight")
        for field, possible in WEIGHT_IF_GIVEN.items():
            found = weight.get(field, possible[0])
            good = any(type(found) is type(value) and found == value for value in possible)
            require(good, f"{SECTION}.global_quant_config.weight.{field} is {shown(found)}, must be {possible[0]!r}")
        for field, wanted in WEIGHT.items():
            require(
                type(weight.get(field)) is type(wanted) and weight[field] == wanted,
                f"{SECTION}.global_quant_config.weight.{field} is {shown(weight.get(field))}, only {wanted!r} (MXFP4) "
                "is supported for Muse Spark",
            )
        export = _object(config, "export")
        form = export.get("weight_format", "real_quantized")
        require(
            form == "real_quantized",
            f"{SECTION}.export.weight_format is {shown(form)}; take the packed export ('real_quantized')",
        )
        group = export.get("kv_cache_group")
        require(not group, f"{SECTION}.export.kv_cache_group is {shown(group)}; a quantised KV cache is not supported")
        exclude = [] if config.get("exclude") is None else config["exclude"]
        names = isinstance(exclude, list) and all(isinstance(entry, str) and entry for entry in exclude)
        require(names, f"{SECTION}.exclude must be a list of names, found {shown(exclude)}")
        check_patterns("exclude", exclude)
        return cls(list(exclude))

    def is_excluded(self, module: str) -> bool:
        """Whether `module` (the checkpoint's name, without `.weight`) stays unquantised, in any of its spellings."""
        return any(self._names_it(name) for name in spellings(module))

    def _names_it(self, name: str) -> bool:
        if any(pattern.match(name) for pattern in self._patterns):
            return True
        parts = name.split(".")
        return any(".".join(parts[:end]) in self._names for end in range(1, len(parts) + 1))

    def experts_quantized(self, module: str, experts: int) -> bool:
        """Whether the experts below `module` are packed: all or none.

        Raises:
            ValueError: some matrices are excluded and some are not.
        """
        states = {
            self.is_excluded(f"{module}.{expert}.{part}_proj")
            for expert in range(experts)
            for part in ("gate", "up", "down")
        }
        if len(states) != 1:
            raise ValueError(f"quantization_config.exclude: names some matrices of {module} only; list all or none")
        return not states.pop()

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """None: experts hold their own packed tensors, and nothing else may be quantised."""
        return None


def _object(parent: dict[str, Any], name: str, at: str = "") -> dict[str, Any]:
    value = {} if parent.get(name) is None else parent[name]
    require(isinstance(value, dict), f"{SECTION}{at}.{name} must be an object, found {shown(value)}")
    return value


def _refuse_others(entries: dict[str, Any], known: set[str], at: str) -> None:
    """Refuse what no export is known to hold and may change the arithmetic, unless it is off."""
    other = next(
        (name for name, value in entries.items() if name not in known and value not in (None, False, [], {})), ""
    )
    require(
        not other,
        f"{SECTION}{at}.{other} is no known entry and may change the arithmetic; set it to null if it has no effect "
        "on inference",
    )


def register() -> None:
    """Make vLLM know the method. Idempotent."""
    from vllm.model_executor.layers.quantization import register_quantization_config

    register_quantization_config(NAME)(QuarkMxfp4Config)
