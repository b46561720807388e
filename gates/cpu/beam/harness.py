# SPDX-License-Identifier: Apache-2.0
"""A loaded Beam model on the emulated device, without an engine, one prompt at a time.

The model is built and loaded as the worker does it, wrapped in vllm-gaudi's own
adapter, and run on a prompt with the prefill metadata of its runner. Module
outputs are recorded under the step names of the CPU reference.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import (
    destroy_distributed_environment,
    destroy_model_parallel,
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model
from vllm.plugins import load_general_plugins

BLOCK = 128


@functools.cache
def plugins() -> None:
    """Load the plug-ins as a worker does."""
    from vllm_gaudi.extension.runtime import finalize_config
    from vllm_gaudi.platform import HpuPlatform  # noqa: F401 (must be importable before the plug-ins)

    load_general_plugins()
    finalize_config()


@functools.cache
def _distributed() -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, backend="hccl")
    ensure_model_parallel_initialized(1, 1)


def release() -> None:
    """Undo what building a model left in this process: the distributed group and the plug-in's frozen config."""
    from vllm_gaudi.extension.runtime import clear_config

    if _distributed.cache_info().currsize:
        destroy_model_parallel()
        destroy_distributed_environment()
    if plugins.cache_info().currsize:
        clear_config()
    _distributed.cache_clear()
    plugins.cache_clear()


@contextmanager
def settings(**values: str):
    """Environment variables of the model for the time of building it."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield


class Harness:
    """The model of `checkpoint` in `dtype`; `environment` holds Beam settings."""

    def __init__(
        self,
        checkpoint: Path,
        dtype: str = "bfloat16",
        max_model_len: int = 512,
        tokenizer: bool = False,
        load_format: str = "auto",
        **environment: str,
    ) -> None:
        plugins()
        arguments = EngineArgs(
            model=str(checkpoint),
            dtype=dtype,
            max_model_len=max_model_len,
            enforce_eager=True,
            block_size=BLOCK,
            skip_tokenizer_init=not tokenizer,
            load_format=load_format,
        )
        self.vllm_config = arguments.create_engine_config()
        # The platform turns float32 into bfloat16; a comparison in fp32 has to insist.
        self.vllm_config.model_config.dtype = getattr(torch, dtype)
        with ExitStack() as stack:
            stack.enter_context(settings(**environment))
            stack.enter_context(set_current_vllm_config(self.vllm_config))
            _distributed()
            # A refused load leaves the model's dtype as torch's default.
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            self.model = get_model(vllm_config=self.vllm_config).to("hpu")
        self.dtype = self.vllm_config.model_config.dtype
        from vllm_gaudi.v1.worker.hpu_model_runner import HpuModelAdapter

        self.adapter = HpuModelAdapter(self.model, vllm_config=self.vllm_config)

    def _metadata(self, tokens: int):
        from vllm_gaudi.v1.attention.backends.hpu_attn import HPUAttentionMetadataV1
        from vllm_gaudi.v1.worker.hpu_model_runner import trim_attn_metadata

        return trim_attn_metadata(
            HPUAttentionMetadataV1.make_prefill_metadata(
                attn_bias=None,
                block_list=None,
                context_lens_tensor=torch.zeros(1, dtype=torch.int32, device="hpu"),
                seq_lens_tensor=torch.tensor([tokens], dtype=torch.int32, device="hpu"),
                slot_mapping=torch.arange(tokens, dtype=torch.int64, device="hpu").view(1, -1),
                block_size=BLOCK,
            )
        )

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Final normed hidden states [T, H] of token `ids` [T]."""
        place = torch.arange(ids.shape[0], dtype=torch.int32, device="hpu")[None]
        with torch.inference_mode(), set_current_vllm_config(self.vllm_config):
            return self.adapter(
                input_ids=ids[None].to("hpu"), positions=place, attn_metadata=self._metadata(ids.shape[0])
            )[0]

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """fp32 logits [T, V]."""
        with torch.inference_mode():
            return self.model.compute_logits(self.hidden(ids)).cpu()

    def record(self, ids: torch.Tensor) -> dict[str, tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
        """Module name -> (its input tensors, its output) over one prompt."""
        seen: dict[str, tuple[tuple[torch.Tensor, ...], torch.Tensor]] = {}
        hooks = []

        def keep(name, module, inputs, keywords, output):
            tensors = [value for value in (*inputs, *keywords.values()) if isinstance(value, torch.Tensor)]
            first = output[0] if isinstance(output, tuple) else output
            seen[name] = (tuple(t.clone() for t in tensors), first.clone())

        for name, module in self.model.named_modules():
            if name:
                hooks.append(module.register_forward_hook(functools.partial(keep, name), with_kwargs=True))
        try:
            self.hidden(ids)
        finally:
            for hook in hooks:
                hook.remove()
        return seen
