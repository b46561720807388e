# SPDX-License-Identifier: Apache-2.0
"""Beam-1.0 for vLLM on Gaudi."""

from collections.abc import Iterable, Iterator

import habana_frameworks.torch as htorch
import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.interfaces import EagleModelMixin, SupportsEagle3, SupportsQuant
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from vllm_gaudi.models.beam.attention import BeamAttention
from vllm_gaudi.models.beam.config import BeamConfig
from vllm_gaudi.models.beam.layers import BeamRMSNorm, DepthScaledAdd, Positions, softcap
from vllm_gaudi.models.beam.loading import checked_tensors, load_checked
from vllm_gaudi.models.beam.moe import BeamMLP, BeamMoE
from vllm_gaudi.models.beam.quant_modules import resolve
from vllm_gaudi.models.beam.rounding import Rounding
from vllm_gaudi.models.beam.serving_checks import check_serving
from vllm_gaudi.models.beam.settings import BeamSettings
from vllm_gaudi.models.beam.tensor_values import check_values, role_of
from vllm_gaudi.runtime.layer_loop import end_layer


class BeamLayer(nn.Module):
    """One layer: attention and MLP, each between two norms, added with depth-scaled weights.

    Not named `...DecoderLayer`: the plug-in ends a lazy graph after each of those, in
    decode too, where a launch costs host time. Here the model's loop decides.
    """

    def __init__(
        self, vllm_config: VllmConfig, index: int, settings: BeamSettings, rounding: Rounding, prefix: str
    ) -> None:
        super().__init__()
        config: BeamConfig = vllm_config.model_config.hf_config
        self.self_attn = BeamAttention(
            config, index, rounding, vllm_config.cache_config, vllm_config.quant_config, f"{prefix}.self_attn"
        )
        self.mlp = (
            BeamMoE(vllm_config, config, rounding, settings.expert_slices, f"{prefix}.mlp")
            if config.is_sparse(index)
            else BeamMLP(config, rounding, vllm_config.quant_config, f"{prefix}.mlp")
        )
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            self.add_module(f"{name}_layernorm", BeamRMSNorm(config.hidden_size, config.rms_norm_eps, rounding))
        self.add_attention = DepthScaledAdd(index, 0, rounding)
        self.add_mlp = DepthScaledAdd(index, 1, rounding)

    def forward(self, hidden: torch.Tensor, tables: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Residual stream [..., H] -> residual stream."""
        branch = self.self_attn(self.input_layernorm(hidden), tables)
        hidden = self.add_attention(self.post_attention_layernorm(branch), hidden)
        branch = self.mlp(self.pre_feedforward_layernorm(hidden))
        return self.add_mlp(self.post_feedforward_layernorm(branch), hidden)


class BeamModel(nn.Module, EagleModelMixin):
    """Embedding, layers and final norm. Layer k's output is aux hidden state k + 1; 0 is the embedding."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config: BeamConfig = vllm_config.model_config.hf_config
        settings = BeamSettings.from_environment()
        rounding = Rounding(settings.exact)
        if vllm_config.cache_config is not None:
            # A layer without a window of its own would fall back to this one.
            vllm_config.cache_config.sliding_window = None
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size,
            config.hidden_size,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.embed_tokens",
        )
        self.layers = nn.ModuleList(
            BeamLayer(vllm_config, index, settings, rounding, f"{prefix}.layers.{index}")
            for index in range(config.num_hidden_layers)
        )
        self.norm = BeamRMSNorm(config.hidden_size, config.rms_norm_eps, rounding)
        self.positions = Positions(
            vllm_config.model_config.max_model_len, config.head_dim, config.rope_parameters["rope_theta"]
        )
        self.lazy = htorch.utils.internal.is_lazy()

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Token ids [...] -> [..., H]."""
        return self.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        """Ids and positions [...] -> normed hidden states [..., H], with aux states if any were asked for."""
        hidden = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        tables = self.positions(positions)
        aux = self._maybe_add_hidden_state([], 0, hidden, None)
        for index, layer in enumerate(self.layers, start=1):
            hidden = layer(hidden, tables)
            if self.lazy:
                end_layer()
            self._maybe_add_hidden_state(aux, index, hidden, None)
        hidden = self.norm(hidden)
        return (hidden, aux) if aux else hidden


class BeamForCausalLM(nn.Module, SupportsQuant, SupportsEagle3):
    """Beam with its head. Logits are fp32 and softcapped."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_substr={".self_attn.gate_proj": ".self_attn.output_gate_proj"},
        orig_to_new_stacked={
            ".self_attn.q_proj": (".self_attn.qkv_proj", "q"),
            ".self_attn.k_proj": (".self_attn.qkv_proj", "k"),
            ".self_attn.v_proj": (".self_attn.qkv_proj", "v"),
            # Expert tensors read `.mlp.experts.N.gate_proj` and so stay as they are.
            ".mlp.gate_proj": (".mlp.gate_up_proj", 0),
            ".mlp.up_proj": (".mlp.gate_up_proj", 1),
        },
    )
    packed_modules_mapping = {  # noqa: RUF012 (vLLM's own convention)
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.vllm_config = vllm_config
        self.config: BeamConfig = vllm_config.model_config.hf_config
        check_serving(vllm_config)
        resolve(vllm_config.quant_config, self.config)
        self.model = BeamModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(
            self.config.vocab_size,
            self.config.hidden_size,
            quant_config=vllm_config.quant_config,
            prefix=maybe_prefix(prefix, "lm_head"),
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
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        """See BeamModel.forward."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Hidden states [T, H] -> fp32 logits [T, V] (None on ranks that do not gather them)."""
        logits = self.logits_processor(self.lm_head, hidden_states)
        if logits is None:
            return None
        return softcap(logits, self.config.final_logit_softcapping, self.model.norm.rounding)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load every tensor of the checkpoint once; see `loading.load_checked`."""
        return load_checked(self, weights)

    def checked_tensors(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The checkpoint's tensors as this model names them, checked; see `loading.checked_tensors`."""
        return checked_tensors(self, tensors)

    def check_values(self, name: str, tensor: torch.Tensor) -> None:
        """Refuse damaged values among the tensors a planning loader reads; `tensor` is any part of one."""
        check_values(name, role_of(name), tensor)
