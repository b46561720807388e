# SPDX-License-Identifier: Apache-2.0
"""Muse Spark Open for vLLM on Gaudi, text only."""

import logging
from collections.abc import Iterable, Iterator
from functools import cache

import habana_frameworks.torch as htorch
import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from vllm_gaudi.models.beam.layers import Positions
from vllm_gaudi.models.muse_spark.attention import MuseAttention
from vllm_gaudi.models.muse_spark.config import MuseSparkTextConfig
from vllm_gaudi.models.muse_spark.loading import check_values, checked_tensors, load_checked
from vllm_gaudi.models.muse_spark.moe import MuseMLP, MuseMoE
from vllm_gaudi.models.muse_spark.norms import ResidualGate, UnitNorm, WeightedNorm
from vllm_gaudi.models.muse_spark.serving_checks import check_serving
from vllm_gaudi.models.muse_spark.settings import MuseSettings
from vllm_gaudi.runtime.layer_loop import end_layer

# Only loggers below "vllm" have a handler.
logger = init_logger(f"vllm.{__name__}")
NOTICE = "Built with Muse Spark Open"
# Names in the exclude list are the checkpoint's; the text model alone is stored without its wrapper.
EXCLUDE_PREFIX = {"muse_spark": "model.language_model.", "muse_spark_text": "model."}


def experts_packed(vllm_config: VllmConfig, config: MuseSparkTextConfig, layer: int) -> bool:
    """Whether the experts of `layer` are MXFP4, from the quantisation section; loading checks it by the tensors."""
    quant = vllm_config.quant_config
    prefix = EXCLUDE_PREFIX[vllm_config.model_config.hf_config.model_type]
    module = f"{prefix}layers.{layer}.mlp.experts"
    return quant is not None and quant.experts_quantized(module, config.num_local_experts)


@cache
def show_notice() -> None:
    """Log the notice that the licence asks for, once a process and at whatever level the log is set to."""
    logger.log(max(logging.INFO, logger.getEffectiveLevel()), NOTICE)


class MuseSparkBlock(nn.Module):
    """One layer: attention and MLP, each blended into the fp32 residual stream by a channel gate.

    Not named `...DecoderLayer`: the plug-in ends a lazy graph after each of those. Here the model's loop decides.
    """

    def __init__(
        self, vllm_config: VllmConfig, config: MuseSparkTextConfig, index: int, settings: MuseSettings, prefix: str
    ) -> None:
        super().__init__()
        size, dtype = config.hidden_size, vllm_config.model_config.dtype
        self.self_attn = MuseAttention(config, index, vllm_config.cache_config, f"{prefix}.self_attn")
        if config.is_sparse(index):
            packed = experts_packed(vllm_config, config, index)
            self.mlp: nn.Module = MuseMoE(config, packed, settings, dtype, f"{prefix}.mlp")
        else:
            self.mlp = MuseMLP(config, f"{prefix}.mlp")
        self.input_layernorm = WeightedNorm(size, config.rms_norm_eps, "centred", dtype)
        self.post_attention_layernorm = UnitNorm(config.post_norm_eps, torch.float32)
        self.pre_feedforward_layernorm = WeightedNorm(size, config.rms_norm_eps, "centred", dtype)
        self.post_feedforward_layernorm = WeightedNorm(size, config.post_norm_eps, "input", torch.float32)
        self.post_attention_residual_gate = ResidualGate(size, config.residual_gate_temperature)
        self.post_feedforward_residual_gate = ResidualGate(size, config.residual_gate_temperature)

    def forward(self, stream: torch.Tensor, tables: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """fp32 residual stream [..., H] -> residual stream."""
        branch = self.self_attn(self.input_layernorm(stream), tables)
        stream = self.post_attention_residual_gate(stream, self.post_attention_layernorm(branch))
        branch = self.mlp(self.pre_feedforward_layernorm(stream))
        return self.post_feedforward_residual_gate(stream, self.post_feedforward_layernorm(branch))


class MuseSparkModel(nn.Module):
    """Embedding with its norm, layers and final norm."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config: MuseSparkTextConfig = vllm_config.model_config.hf_text_config
        parallel = vllm_config.parallel_config
        settings = MuseSettings.from_environment(parallel.tensor_parallel_size)
        if vllm_config.cache_config is not None:
            # A layer without a window of its own would fall back to this one.
            vllm_config.cache_config.sliding_window = None
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, prefix=f"{prefix}.embed_tokens"
        )
        self.embed_norm = UnitNorm(config.rms_norm_eps, torch.float32)
        self.layers = nn.ModuleList(
            MuseSparkBlock(vllm_config, config, index, settings, f"{prefix}.layers.{index}")
            for index in range(config.num_hidden_layers)
        )
        self.norm = WeightedNorm(config.hidden_size, config.rms_norm_eps, "plain", vllm_config.model_config.dtype)
        rows, theta = vllm_config.model_config.max_model_len, config.rope_parameters["rope_theta"]
        self.positions = Positions(rows, config.head_dim, theta)
        self.lazy = htorch.utils.internal.is_lazy()

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Token ids [...] -> fp32 residual stream [..., H]."""
        return self.embed_norm(self.embed_tokens(input_ids))

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Ids and positions [...] -> normed hidden states [..., H] in the model dtype."""
        stream = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds.float()
        tables = self.positions(positions)
        for layer in self.layers:
            stream = layer(stream, tables)
            if self.lazy:
                end_layer()
        return self.norm(stream)


class MuseSparkForConditionalGeneration(nn.Module):
    """Muse Spark with its head, under the published architecture name; image and audio parts are not served.

    Logits are fp32, scaled and softcapped.
    """

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_substr={".self_attn.gate_proj": ".self_attn.output_gate_proj"},
        orig_to_new_stacked={
            ".self_attn.q_proj": (".self_attn.qkv_proj", "q"),
            ".self_attn.k_proj": (".self_attn.qkv_proj", "k"),
            ".self_attn.v_proj": (".self_attn.qkv_proj", "v"),
            ".mlp.gate_proj": (".mlp.gate_up_proj", 0),
            ".mlp.up_proj": (".mlp.gate_up_proj", 1),
        },
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        show_notice()
        self.config: MuseSparkTextConfig = vllm_config.model_config.hf_text_config
        check_serving(vllm_config)
        self.model = MuseSparkModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(
            self.config.vocab_size, self.config.hidden_size, prefix=maybe_prefix(prefix, "lm_head")
        )
        self.logits_processor = LogitsProcessor(self.config.vocab_size)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Token ids [...] -> [..., H]."""
        return self.model.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See MuseSparkModel.forward."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Hidden states [T, H] -> fp32 logits [T, V] (None on ranks that do not gather them)."""
        logits = self.logits_processor(self.lm_head, hidden_states)
        if logits is None:
            return None
        cap = self.config.final_logit_softcapping
        return torch.tanh(logits.float() * self.config.output_multiplier / cap) * cap

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load every tensor of the checkpoint once; see `loading.load_checked`."""
        return load_checked(self, weights)

    def checked_tensors(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The checkpoint's tensors as this model names them, checked; see `loading.checked_tensors`."""
        return checked_tensors(self, tensors)

    def check_values(self, name: str, tensor: torch.Tensor) -> None:
        """Refuse damaged scales and routers; see `loading.check_values`."""
        check_values(name, tensor)
