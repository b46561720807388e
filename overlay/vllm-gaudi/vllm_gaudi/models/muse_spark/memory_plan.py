# SPDX-License-Identifier: Apache-2.0
"""Memory of one card for a prompt of a given length, by arithmetic from the configuration.

    python -m vllm_gaudi.models.muse_spark.memory_plan [CHECKPOINT] --tokens 1048576

Prints every item and exits with 1 when the sum is over the card's memory. Weights and KV cache are exact; transients
are upper bounds of what the operators of one layer hold at once, times the layers in flight. Workspace inside a kernel
other than attention, smaller graphs and the allocator's own waste are not in it: measure the margin on the device.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from vllm_gaudi.models.muse_spark.config import MuseSparkConfig, MuseSparkTextConfig
from vllm_gaudi.models.muse_spark.placement import GROUP, Placement
from vllm_gaudi.quantization.quark_mxfp4 import QuarkMxfp4Config
from vllm_gaudi.runtime import settings
from vllm_gaudi.runtime.kv_figures import KvFigures, figures
from vllm_gaudi.runtime.long_attention import tile_rows, workspace_bytes
from vllm_gaudi.runtime.windows import width

GIB = 1 << 30
VOCABULARY_STEP = 64  # vLLM pads the vocabulary to a multiple of it
CARD_GIB = 94.62  # what a Gaudi 2 shows of its 96 GB
BF16, FP32 = 2, 4
GRAPH_BYTES = 1 << 19  # a captured decode graph keeps for each block of its bucket, as the port page measured
BLOCK = 128


@dataclass(frozen=True)
class Served:
    """How a model is served.

    Attributes:
        tokens: length of the longest prompt, in tokens, and of the served context.
        chunk: tokens of a prefill step.
        ranks, expert_groups: tensor-parallel size and expert groups.
        packed: whether the experts of all layers but first and last are MXFP4.
        requests: requests of that length at once.
        steps_in_flight: 2 with async scheduling.
        layers_in_flight: run-ahead bound of the prefill.
        moe_chunk_bytes: most bytes of fp32 expert rows at once.
    """

    tokens: int = 1 << 20
    chunk: int = 4096
    ranks: int = 8
    expert_groups: int = 2
    packed: bool = True
    requests: int = 1
    steps_in_flight: int = 2
    layers_in_flight: int = 2
    moe_chunk_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "packed" and value < 1:
                raise ValueError(f"{name} is {value}, must be at least 1")


class MemoryPlan:
    """Bytes of one card; `quant` says which experts are packed, without it `served` does.

    Raises ValueError for sizes that cannot be placed.
    """

    def __init__(self, config: MuseSparkTextConfig, served: Served, quant: QuarkMxfp4Config | None = None) -> None:
        self.config, self.served, self.quant = config, served, quant
        self.place = Placement(
            0,
            served.ranks,
            served.expert_groups,
            config.num_local_experts,
            config.moe_hidden_size,
            config.moe_intermediate_size,
        )
        if config.num_attention_heads % served.ranks:
            raise ValueError(f"{served.ranks} ranks do not divide num_attention_heads {config.num_attention_heads}")
        self.heads = config.num_attention_heads // served.ranks
        self.kv_heads = max(1, config.num_key_value_heads // served.ranks)
        self.query_width, self.kv_width = self.heads * config.head_dim, self.kv_heads * config.head_dim

    def _is_packed(self, layer: int) -> bool:
        if self.quant is None:
            return self.served.packed and layer not in (0, self.config.num_hidden_layers - 1)
        return self.quant.experts_quantized(f"model.layers.{layer}.mlp.experts", self.config.num_local_experts)

    def weights(self) -> dict[str, int]:
        """Parameters and tables by part."""
        c, p = self.config, self.place
        layers = range(c.num_hidden_layers)
        sparse = [i for i in layers if c.is_sparse(i)]
        packed = [i for i in sparse if self._is_packed(i)]
        matrices = p.local_experts * 3 * p.latent * p.width  # elements of the experts of a layer
        hidden = c.hidden_size
        attention = hidden * (3 * self.query_width + 2 * self.kv_width) * BF16
        norms = 3 * hidden * BF16 + 2 * hidden * FP32
        latent = 2 * hidden * p.latent * BF16 + 2 * p.latent * BF16
        dense = 3 * hidden * (c.intermediate_size // self.served.ranks) * BF16
        tables = self.served.tokens * (c.head_dim + 1) * FP32
        vocabulary = -(-c.vocab_size // VOCABULARY_STEP) * VOCABULARY_STEP // self.served.ranks
        return {
            "experts, MXFP4": len(packed) * (matrices // 2 + matrices // GROUP),
            "experts, BF16": (len(sparse) - len(packed)) * matrices * BF16,
            "attention": len(layers) * attention,
            "latent projections": len(sparse) * latent,
            "router": len(sparse) * c.num_local_experts * (hidden + 1) * FP32,
            "dense MLP": (len(layers) - len(sparse)) * dense,
            "norms and residual gates": len(layers) * norms + hidden * BF16,
            "embedding and head": 2 * vocabulary * hidden * BF16,
            "position tables": tables,
        }

    def kv(self) -> KvFigures:
        """Figures of the KV cache."""
        windows = [self.config.window(i) for i in range(self.config.num_hidden_layers)]
        return figures(windows, self.kv_heads, self.config.head_dim, BLOCK)

    def kv_bytes(self) -> int:
        """Blocks of all requests while a prompt is read in, and the padding block."""
        kv, served = self.kv(), self.served
        one = kv.request_bytes(served.tokens, served.steps_in_flight * served.chunk)
        return served.requests * one + kv.block_bytes

    def _keys(self, layer_window: int | None) -> int:
        context = self.served.tokens if layer_window is None else width(layer_window, BLOCK) * BLOCK
        return context + self.served.chunk

    def tile(self) -> tuple[int, int]:
        """(query rows of a call, keys) of a full layer at the end of the prompt."""
        keys = self._keys(None)
        budget = settings.current().attention_workspace_bytes
        return tile_rows(self.heads, self.served.chunk, keys, BF16, budget), keys

    def workspace(self) -> int:
        """What biased attention keeps: its largest call."""
        rows, keys = self.tile()
        sliding = self._keys(self.config.sliding_window)
        sliding_rows = tile_rows(
            self.heads, self.served.chunk, sliding, BF16, settings.current().attention_workspace_bytes
        )
        return max(workspace_bytes(self.heads, *call) for call in ((rows, keys), (sliding_rows, sliding)))

    def held(self) -> int:
        """What a prefill forward holds throughout: residual stream, bias of the sliding layers, validity row."""
        c, chunk = self.config, self.served.chunk
        sliding = self._keys(c.sliding_window)
        return chunk * c.hidden_size * FP32 + chunk * sliding * (BF16 + 1) + self._keys(None) * (BF16 + FP32)

    def layer_peaks(self) -> dict[str, int]:
        """Most bytes one layer holds at once, by the part of the layer."""
        c, chunk, hidden = self.config, self.served.chunk, self.config.hidden_size
        rows, keys = self.tile()
        projected = chunk * (hidden * BF16 + (2 * self.query_width + 2 * self.kv_width) * BF16)
        normed = chunk * self.query_width * (2 * BF16 + 3 * FP32)
        # Keys and values with the chunk behind the cached ones, and the cached half that is being appended.
        cached = 3 * keys * self.kv_width * BF16
        # A tile's bias, the comparison it comes from and its scores as the kernel's caller sees them.
        tiles = (settings.current().tiles_in_flight + 1) * rows * keys * (BF16 + 1)
        tokens = max(1, self.served.moe_chunk_bytes // (c.num_experts_per_tok * self.place.latent * FP32))
        routes = min(tokens, chunk) * c.num_experts_per_tok
        per_route = 2 * BF16 + 3 * FP32  # repeated row and kernel's row; then sum, norm and product in fp32
        router = chunk * (hidden * (BF16 + FP32) + c.num_local_experts * 4 * FP32)
        return {
            "attention of a full layer": projected + normed + cached + tiles,
            "experts": router + routes * self.place.latent * per_route + 3 * chunk * self.place.latent * BF16,
            "norms and blends": chunk * hidden * (BF16 + 5 * FP32),
        }

    def items(self) -> dict[str, int]:
        """Every item of the plan."""
        served, peaks = self.served, self.layer_peaks()
        found = {f"weights: {name}": size for name, size in self.weights().items() if size}
        found[f"KV cache, {served.requests} x {served.tokens} tokens"] = self.kv_bytes()
        found["attention workspace"] = self.workspace()
        found["held by a prefill forward"] = self.held()
        part = max(peaks, key=peaks.__getitem__)
        found[f"layers in flight, {served.layers_in_flight} x {part}"] = served.layers_in_flight * peaks[part]
        found["logits of the last row, fp32"] = 4 * self.config.vocab_size * FP32
        found["decode graph of the longest context"] = served.requests * -(-served.tokens // BLOCK) * GRAPH_BYTES
        return found


def read_config(folder: str) -> tuple[MuseSparkTextConfig, QuarkMxfp4Config | None]:
    """Text config of a checkpoint and its quantisation, None for BF16. Raises OSError or ValueError naming the file."""
    path = Path(folder) / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold an object; take the published checkpoint's")
    kind = next(
        (kind for kind in (MuseSparkConfig, MuseSparkTextConfig) if kind.model_type == values.get("model_type")), None
    )
    if kind is None:
        raise ValueError(f"{path}: model_type {values.get('model_type')!r} is not Muse Spark's, take its checkpoint")
    config, section = kind.from_dict(values), values.get("quantization_config")
    if section is None:
        return config.get_text_config(), None
    if not QuarkMxfp4Config.override_quantization_method(section, None, config):
        raise ValueError(f"{path}: quantization_config is not Quark's; Muse Spark is served in BF16 or Quark MXFP4")
    return config.get_text_config(), QuarkMxfp4Config.from_config(section)


def main(arguments: list[str] | None = None) -> int:
    """The command; see the module."""
    parser = argparse.ArgumentParser(prog="python -m vllm_gaudi.models.muse_spark.memory_plan", description=__doc__)
    parser.add_argument("checkpoint", nargs="?", help="folder with config.json; default: the published model")
    for name, default in vars(Served()).items():
        if not isinstance(default, bool):
            parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--memory-gib", type=float, default=CARD_GIB)
    options = vars(parser.parse_args(arguments))
    folder, memory = options.pop("checkpoint"), options.pop("memory_gib")
    try:
        if not memory > 0:
            raise ValueError(f"--memory-gib is {memory}, must be above 0")
        config, quant = read_config(folder) if folder else (MuseSparkTextConfig(), None)
        items = MemoryPlan(config, Served(packed=not folder, **options), quant).items()
    except (ValueError, RuntimeError, OSError) as error:
        print(f"memory_plan: {error}", file=sys.stderr)
        return 3
    for name, size in items.items():
        print(f"{size / GIB:9.3f} GiB  {name}")
    total = sum(items.values()) / GIB
    print(f"{total:9.3f} GiB  of {memory:.2f}, {memory - total:.3f} left")
    return int(total > memory)


if __name__ == "__main__":
    sys.exit(main())
