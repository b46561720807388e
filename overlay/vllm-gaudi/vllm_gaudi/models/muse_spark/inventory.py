# SPDX-License-Identifier: Apache-2.0
"""What a Muse Spark checkpoint must contain (text part), by its own names, and a check-off list for one load."""

import re
from collections.abc import Callable

import torch

from vllm_gaudi.models.beam.inventory import PLAIN_DTYPES, Expected, Inventory
from vllm_gaudi.models.beam.tensor_values import BeamCheckpointError, role_of
from vllm_gaudi.models.muse_spark.config import MuseSparkTextConfig
from vllm_gaudi.models.muse_spark.placement import GROUP

PREFIXES = ("model.language_model.", "model.", "")
SKIPPED = ("vision_tower.", "vision_adapter.", "vision_projection.", "audio_tower.")
EXPERTS = ".mlp.experts."
# Buffers of training and of other servers, which hold nothing of the model: RoPE tables and token counts of experts.
BUFFERS = re.compile(
    r".*\.(?:(?:original_)?inv_freq|(?:cos|sin)_cached|(?:num_)?tokens_per_expert|expert_token_counts?)"
)


class MuseCheckpointError(BeamCheckpointError):
    """A checkpoint that must not be served: which tensor, what is wrong, what to do."""


class PackedExpected(Expected):
    """Adds the roles `packed` and `packed_scale` (uint8); router and residual gates may be stored in any float."""

    def accepts(self, dtype: torch.dtype) -> bool:
        if self.role.startswith("packed"):
            return dtype == torch.uint8
        return dtype.is_floating_point and dtype.itemsize > 1


def text_name(name: str) -> str | None:
    """The name within this model (`model....` or `lm_head.weight`); None for a part that is not served."""
    if any(name.removeprefix("model.").startswith(part) for part in SKIPPED) or BUFFERS.fullmatch(name):
        return None
    if name.startswith("lm_head."):
        return name
    prefix = next(prefix for prefix in PREFIXES if name.startswith(prefix))
    return f"model.{name.removeprefix(prefix)}"


def expected_tensors(config: MuseSparkTextConfig, packed: Callable[[int], bool]) -> dict[str, Expected]:
    """Every tensor by `text_name`, one per expert matrix; `packed` tells whether a layer's experts are MXFP4."""
    hidden, latent, head = config.hidden_size, config.moe_hidden_size, config.head_dim
    heads, kv = config.num_attention_heads * head, config.num_key_value_heads * head
    table: dict[str, Expected] = {}

    def plain(name: str, *shape: int) -> None:
        table[name] = PackedExpected(shape, role_of(name))

    for name in ("model.embed_tokens", "lm_head"):
        plain(f"{name}.weight", config.vocab_size, hidden)
    plain("model.norm.weight", hidden)
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        for name, rows in (("q", heads), ("k", kv), ("v", kv), ("gate", heads)):
            plain(f"{at}self_attn.{name}_proj.weight", rows, hidden)
        plain(f"{at}self_attn.o_proj.weight", hidden, heads)
        for name in ("input", "pre_feedforward", "post_feedforward"):
            plain(f"{at}{name}_layernorm.weight", hidden)
        for name in ("attention", "feedforward"):
            plain(f"{at}post_{name}_residual_gate.gate", hidden)
        inner = config.intermediate_size
        if not config.is_sparse(layer):
            for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
                plain(f"{at}mlp.{name}_proj.weight", *shape)
            continue
        plain(f"{at}mlp.gate.weight", config.num_local_experts, hidden)
        plain(f"{at}mlp.gate.e_score_correction_bias", config.num_local_experts)
        plain(f"{at}mlp.pre_expert_proj.weight", latent, hidden)
        plain(f"{at}mlp.post_expert_proj.weight", hidden, latent)
        plain(f"{at}mlp.pre_expert_norm.weight", latent)
        plain(f"{at}mlp.experts.post_expert_norm.weight", latent)
        inner = config.moe_intermediate_size
        for expert in range(config.num_local_experts):
            for name, rows, columns in (("gate", inner, latent), ("up", inner, latent), ("down", latent, inner)):
                full = f"model.layers.{layer}{EXPERTS}{expert}.{name}_proj.weight"
                if packed(layer):
                    table[full] = PackedExpected((rows, columns // 2), "packed")
                    table[full + "_scale"] = PackedExpected((rows, columns // GROUP), "packed_scale")
                else:
                    plain(full, rows, columns)
    return table


class MuseInventory(Inventory):
    """Messages of its own; everything else is the shared check-off list."""

    error = MuseCheckpointError

    def _unknown(self, name: str) -> str:
        if not name.endswith("_scale"):
            return f"{name}: no such tensor in Muse Spark; the checkpoint is of another model or layout"
        if EXPERTS in name:
            return f"{name}: quantization_config excludes these experts, so they must not have scales"
        return f"{name}: its module is quantised, but only routed experts may be; take another export"

    @staticmethod
    def _mistyped(name: str, want: Expected, dtype: torch.dtype) -> str:
        found = str(dtype).removeprefix("torch.")
        if want.role in ("plain", "matrix", "router"):
            return (
                f"{name}: stored as {found}, but its module is not quantised, so it must be BF16 or "
                "another float of at least 16 bits"
            )
        if dtype in PLAIN_DTYPES and want.role == "packed":
            return f"{name}: stored as {found}, but quantization_config says MXFP4; add it to exclude"
        what = "E8M0 scales" if want.role == "packed_scale" else "packed MXFP4"
        return f"{name}: stored as {found}; Muse Spark is served from {what} as uint8 there, take Quark's own export"
