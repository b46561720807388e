# SPDX-License-Identifier: Apache-2.0
"""What a Beam checkpoint must contain, and a check-off list for one load.

Names are those of the files. A module counts as quantised when the server built
it so (from the checkpoint's quantisation section and ignore list): then its
weight must be E4M3 with a scale, otherwise neither may be there.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from vllm_gaudi.models.beam.config import BeamConfig
from vllm_gaudi.models.beam.quant_section import OTHER_SCHEMES
from vllm_gaudi.models.beam.tensor_values import BeamCheckpointError, check_values

E4M3 = torch.float8_e4m3fn
PLAIN_DTYPES = {torch.bfloat16, torch.float16, torch.float32}


@dataclass(frozen=True)
class Expected:
    """Full (unsharded) shape, and the role: `matrix`, `fp8`, `scale`, `plain` or `router`."""

    shape: tuple[int, ...]
    role: str

    def accepts(self, dtype: torch.dtype) -> bool:
        """Whether a tensor of `dtype` may be stored in this role."""
        if self.role == "fp8":
            return dtype == E4M3
        if self.role == "router":
            return dtype == torch.float32
        return dtype in PLAIN_DTYPES


def expected_tensors(config: BeamConfig, quantized: Callable[[str], bool]) -> dict[str, Expected]:
    """Every tensor of the checkpoint with one tensor per expert matrix.

    Args:
        config: the model's config.
        quantized: whether the module of a checkpoint name (`model.layers.0.self_attn.q_proj`) is FP8.
    """
    hidden, head, heads = config.hidden_size, config.head_dim, config.num_attention_heads
    kv = config.num_key_value_heads
    table: dict[str, Expected] = {}

    def matrix(module: str, rows: int, columns: int, fp8: bool) -> None:
        table[f"{module}.weight"] = Expected((rows, columns), "fp8" if fp8 else "matrix")
        if fp8:
            table[f"{module}.weight_scale"] = Expected((rows, 1), "scale")

    def mlp(module: str, inner: int, fp8: dict[str, bool]) -> None:
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            matrix(f"{module}.{name}_proj", *shape, fp8[name])

    for name in ("model.embed_tokens", "lm_head"):
        table[f"{name}.weight"] = Expected((config.vocab_size, hidden), "plain")
    table["model.norm.weight"] = Expected((hidden,), "plain")
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}"
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            table[f"{at}.{name}_layernorm.weight"] = Expected((hidden,), "plain")
        for name, rows, columns in (
            ("q", heads * head, hidden),
            ("k", kv * head, hidden),
            ("v", kv * head, hidden),
            ("gate", heads * head, hidden),
            ("o", hidden, heads * head),
        ):
            module = f"{at}.self_attn.{name}_proj"
            matrix(module, rows, columns, quantized(module))
        for name in ("q_norm", "k_norm"):
            table[f"{at}.self_attn.{name}.weight"] = Expected((head,), "plain")
        table[f"{at}.self_attn.gate_bias"] = Expected((heads,), "plain")
        if not config.is_sparse(layer):
            fp8 = {name: quantized(f"{at}.mlp.{name}_proj") for name in ("gate", "up", "down")}
            mlp(f"{at}.mlp", config.intermediate_size, fp8)
            continue
        table[f"{at}.mlp.gate.weight"] = Expected((config.num_experts, hidden), "router")
        table[f"{at}.mlp.gate.e_score_correction_bias"] = Expected((config.num_experts,), "router")
        fp8 = {name: quantized(f"{at}.mlp.experts.0.{name}_proj") for name in ("gate", "up", "down")}
        for expert in range(config.num_experts):
            mlp(f"{at}.mlp.experts.{expert}", config.moe_intermediate_size, fp8)
    return table


class Inventory:
    """Checks tensors off against the expected ones.

    Raises (from `take` and `finish`):
        BeamCheckpointError: unknown, repeated, misshapen, mistyped or missing tensors, scales or router numbers
            that cannot be.
    """

    error: type[ValueError] = BeamCheckpointError

    def __init__(self, expected: dict[str, Expected]) -> None:
        self.expected = expected
        self.seen: set[str] = set()
        self.dtypes: Counter[torch.dtype] = Counter()

    def take(self, name: str, tensor: torch.Tensor) -> None:
        """Check one tensor off."""
        want = self.expected.get(name)
        if want is None:
            raise self.error(self._unknown(name))
        if name in self.seen:
            raise self.error(f"{name}: occurs twice in the checkpoint; remove the extra shard")
        # The type first: unquantised values have another shape than packed ones, and what is wrong is the type.
        if not want.accepts(tensor.dtype):
            raise self.error(self._mistyped(name, want, tensor.dtype))
        if tuple(tensor.shape) != want.shape:
            raise self.error(
                f"{name}: shape {tuple(tensor.shape)}, the config asks for {want.shape}; "
                "config.json and weights are of different models"
            )
        if not tensor.is_meta:
            check_values(name, want.role, tensor, self.error)
        self.seen.add(name)
        self.dtypes[tensor.dtype] += 1

    def _unknown(self, name: str) -> str:
        if name.endswith("_scale") and name.removesuffix("_scale") in self.expected:
            return (
                f"{name}: its module is on the ignore list of quantization_config or no target, so it must not have a "
                "scale; if its weight is E4M3, take it off the list"
            )
        if name.endswith(OTHER_SCHEMES):
            return (
                f"{name}: belongs to another quantisation scheme; Beam is served from E4M3 with one scale a row "
                "(weight, weight_scale), dynamic activations and a BF16 cache"
            )
        return f"{name}: no such tensor in Beam; the checkpoint is of another model or layout"

    @staticmethod
    def _mistyped(name: str, want: Expected, dtype: torch.dtype) -> str:
        found = str(dtype).removeprefix("torch.")
        if want.role == "plain":
            return f"{name}: stored as {found}; Beam is served with it in bfloat16, float16 or float32, never quantised"
        if want.role in ("fp8", "matrix", "scale") and dtype not in (E4M3, *PLAIN_DTYPES):
            stored = "bfloat16, float16 or float32" if want.role == "scale" else "float8_e4m3fn or bfloat16"
            return f"{name}: stored as {found}; Beam is served from {stored} there, take another export"
        if want.role == "fp8":
            layer, expert, _ = name.partition(".mlp.experts.")
            advice = f"every expert of {layer}, as BF16," if expert else "the module"
            return f"{name}: stored as {found}, but quantization_config says E4M3; put {advice} on its ignore list"
        if want.role == "matrix":
            return (
                f"{name}: stored as E4M3, but its module is not quantised by quantization_config; take it off the "
                "ignore list or make it a target"
            )
        if want.role == "router":
            return f"{name}: stored as {found}; the router must be float32, narrower types change the chosen experts"
        return f"{name}: stored as {found}; scales must be bfloat16, float16 or float32"

    def finish(self, optional: Callable[[str], bool] = lambda name: False) -> None:
        """Refuse missing tensors but those a reader may leave out (`optional`)."""
        missing = [name for name in self.expected if name not in self.seen and not optional(name)]
        if missing:
            raise self.error(
                f"{len(missing)} of {len(self.expected)} tensors are missing, first {missing[:3]}; "
                "the checkpoint is incomplete"
            )


def unpack(name: str, tensor: torch.Tensor, config: BeamConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """One (name, tensor) per expert matrix of a packed expert tensor; anything else unchanged.

    Packed are `experts.gate_up_proj` [E, 2I, H] (gate rows first) and
    `experts.down_proj` [E, H, I], with scales `..._scale` or `....weight_scale`.
    """
    head, found, tail = name.partition(".mlp.experts.")
    part, _, kind = tail.partition("_proj")
    if not found or part not in ("gate_up", "down"):
        yield name, tensor
        return
    suffixes = {"": "weight", ".weight": "weight", "_scale": "weight_scale", ".weight_scale": "weight_scale"}
    if kind not in suffixes:
        yield name, tensor  # unknown, and refused as such
        return
    inner, hidden = config.moe_intermediate_size, config.hidden_size
    rows, columns = (2 * inner, hidden) if part == "gate_up" else (hidden, inner)
    want = (config.num_experts, rows, columns if suffixes[kind] == "weight" else 1)
    if tuple(tensor.shape) != want:
        raise BeamCheckpointError(
            f"{name}: shape {tuple(tensor.shape)}, the config asks for packed experts of {want} (experts, rows, "
            "columns; gate rows first); convert the checkpoint or take the config.json that belongs to it"
        )
    names = ("gate", "up") if part == "gate_up" else ("down",)
    for expert, stacked in enumerate(tensor.unbind()):
        for projection, matrix in zip(names, stacked.chunk(len(names)), strict=True):
            yield f"{head}.mlp.experts.{expert}.{projection}_proj.{suffixes[kind]}", matrix
