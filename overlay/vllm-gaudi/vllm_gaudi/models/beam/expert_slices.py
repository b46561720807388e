# SPDX-License-Identifier: Apache-2.0
"""Run each expert as several narrower ones, to match tensor-parallel FP8 numerics.

Under expert parallelism the fused FP8 kernel quantises the input of an expert's
down projection per token over its whole intermediate; under tensor parallelism
each rank does so over its part. With n slices an expert becomes n entries of the
kernel with the same routing weight, whose partial outputs the kernel sums. It is
for comparing numerics: n times the tensor inputs a launch.
"""

import torch
from torch import nn


def _pieces(layer: nn.Module, slices: int) -> list[tuple[torch.Tensor, ...]]:
    """(w13, w13 scale, w2, w2 scale) per local expert and slice, each contiguous."""
    width = layer.w2_weight.shape[-1] // slices
    pieces = []
    for expert in range(layer.local_num_experts):
        w13, scale = layer.w13_weight.data[expert], layer.w13_weight_scale.data[expert]
        w2, w2_scale = layer.w2_weight.data[expert], layer.w2_weight_scale.data[expert]
        for start in range(0, w2.shape[-1], width):
            rows = [slice(at + start, at + start + width) for at in (0, w2.shape[-1])]
            pieces.append(
                (
                    # bytes: E4M3 has no concatenation everywhere
                    torch.cat([w13[r].view(torch.uint8) for r in rows]).view(w13.dtype),
                    torch.cat([scale[r] for r in rows]),
                    w2[:, start : start + width].contiguous(),
                    w2_scale,
                )
            )
    return pieces


class SlicedExperts(nn.Module):
    """Stands in for a layer's FP8 expert operator; same call, `slices` kernel entries an expert."""

    def __init__(self, operator: nn.Module, layer: nn.Module, slices: int) -> None:
        super().__init__()
        local = operator.num_experts
        first = operator.experts_min * slices
        self.slices = slices
        self.operator = type(operator)(
            operator.global_num_experts * slices, local * slices, first, first + local * slices - 1
        )
        for index, (w13, w13_scale, w2, w2_scale) in enumerate(_pieces(layer, slices)):
            self.operator.w13_list[index].set_weight(w13)
            self.operator.w13_list[index].set_scale_inv_fp8(w13_scale)
            self.operator.w2_list[index].set_weight(w2)
            self.operator.w2_list[index].set_scale_inv_fp8(w2_scale)

    def forward(self, x, topk_ids, topk_weights, **kwargs) -> torch.Tensor:
        """[T, H] with ids and weights [T, k] -> partial sums [T, H] of this rank."""
        offsets = torch.arange(self.slices, device=topk_ids.device, dtype=topk_ids.dtype)
        ids = (topk_ids.unsqueeze(-1) * self.slices + offsets).flatten(1)
        weights = topk_weights.repeat_interleave(self.slices, dim=1)
        return self.operator(x, ids, weights, **kwargs)


def slice_after_loading(layer: nn.Module, slices: int, prefix: str) -> None:
    """Make `layer` (RoutedExperts) replace its operator once its weights are processed.

    Raises:
        ValueError: the experts are not FP8, not expert-parallel, or of a width `slices` does not divide.
    """
    flag = "VLLM_BEAM_EXPERT_SLICES"
    if not layer.use_ep:
        raise ValueError(f"{flag}={slices}: only with --enable-expert-parallel; tensor parallelism slices already")
    if not hasattr(layer, "w13_weight_scale"):
        raise ValueError(f"{flag}={slices}: {prefix}.experts are not FP8, slicing would change nothing")
    width = layer.w2_weight.shape[-1]
    if width % slices:
        raise ValueError(f"{flag}={slices}: does not divide moe_intermediate_size {width}")
    method = layer.quant_method
    process = method.process_weights_after_loading

    def process_and_slice(module: nn.Module) -> None:
        process(module)
        module.moe_op = SlicedExperts(module.moe_op, module, slices)
        # The slices are copies: kept beside them, the stacks would double the experts' memory.
        for name in ("w13_weight", "w2_weight"):
            stack = getattr(module, name)
            setattr(module, name, nn.Parameter(stack.data.new_empty(0), requires_grad=False))

    method.process_weights_after_loading = process_and_slice
