# SPDX-License-Identifier: Apache-2.0
"""The expert kernel behind one interface: one row in, one expert, one row out.

An operator is called as `op(rows, ids, weights, first)` with bf16 rows [R, L], one global expert id a row [R], the
weights of the local experts (ids `first` onwards), and returns bf16 [R, L]: `down(silu(gate(x)) * up(x))` for a local
id and exact zeros for any other. Another kernel is one more entry of OPERATORS.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

GROUP = 32
ROUTES_AT_ONCE = 16  # rows whose weights are decoded together by the plain operator
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@dataclass(frozen=True)
class ExpertWeights:
    """Local experts, stacked. Gate rows come before up rows.

    w13 [E, 2I, L] and w2 [E, L, I] in bf16; or packed uint8 [E, 2I, L/2] and [E, L, I/2] with E8M0 scales
    [E, 2I, L/32] and [E, L, I/32].
    """

    w13: torch.Tensor
    w2: torch.Tensor
    w13_scale: torch.Tensor | None = None
    w2_scale: torch.Tensor | None = None


ExpertOperator = Callable[[torch.Tensor, torch.Tensor, ExpertWeights, int], torch.Tensor]


def _is_local(ids: torch.Tensor, first: int, count: int) -> torch.Tensor:
    return (ids >= first) & (ids < first + count)


class StockOperator:
    """The device's fused kernel with one route a row and weight one, so its weighted sum is the row itself."""

    def __init__(self) -> None:
        import habana_frameworks.torch as htorch

        # Outside lazy mode the MXFP4 overload exists for the graph compiler only.
        compiled = torch.compile(backend="hpu_backend")
        self._wrap = (lambda call: call) if htorch.utils.internal.is_lazy() else compiled
        self._mxfp4 = self._wrap(self._call_mxfp4)

    @staticmethod
    def _call_mxfp4(rows, table, ones, w13, w2, w13_scale, w2_scale, first, last) -> torch.Tensor:
        return torch.ops.hpu.mixture_of_experts.mxfp4_fused_weights(
            rows,
            table,
            ones,
            w13,
            w2,
            w13_scale,
            w2_scale,
            block_size=GROUP,
            permuted_weights=True,
            activation="silu",
            experts_min=first,
            experts_max=last,
            is_fp4=True,
            chunk_size=0,
            total_experts=0,
        )

    def __call__(self, rows: torch.Tensor, ids: torch.Tensor, weights: ExpertWeights, first: int) -> torch.Tensor:
        """See the module."""
        count = weights.w13.shape[0]
        ones = torch.ones((rows.shape[0], 1), dtype=rows.dtype, device=rows.device)
        last = first + count - 1
        lists = (weights.w13.unbind(), weights.w2.unbind())
        if weights.w13_scale is None:
            out = torch.ops.hpu.mixture_of_experts.fused_weights(
                rows,
                ids.long()[:, None],
                ones,
                *lists,
                permuted_weights=True,
                activation="silu",
                experts_min=first,
                experts_max=last,
            )
        else:
            scales = (weights.w13_scale.unbind(), weights.w2_scale.unbind())
            out = self._mxfp4(rows, ids.to(torch.int32)[:, None], ones, *lists, *scales, first, last)
        # The kernel leaves such rows at zero; the sum over ranks relies on it, so it is not left to the kernel.
        return torch.where(_is_local(ids, first, count)[:, None], out, torch.zeros_like(out))


def e8m0_table() -> torch.Tensor:
    """bf16 `2 ** (byte - 127)` for every scale byte; 255 is NaN. The exponent field of bf16 is the byte itself."""
    bits = torch.arange(256, dtype=torch.int32) << 7
    bits[0], bits[255] = 0x0040, 0x7FC0  # subnormal 2**-127; NaN instead of infinity
    return bits.to(torch.int16).view(torch.bfloat16)


class TorchOperator:
    """Plain operators on the touched experts: static shapes, no data-dependent control flow, so graphs can hold it.

    The weights of each row's expert are gathered and decoded, ROUTES_AT_ONCE rows at a time.
    """

    def __init__(self) -> None:
        self._codes, self._scales = torch.tensor(E2M1, dtype=torch.bfloat16), e8m0_table()

    def decode(self, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """bf16 [..., n] of packed uint8 [..., n/2] and scales [..., n/32]; the low nibble is the even column."""
        if self._codes.device != packed.device:
            self._codes, self._scales = self._codes.to(packed.device), self._scales.to(packed.device)
        code = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
        values = self._codes.index_select(0, code.flatten().int()).view(code.shape).unflatten(-1, (-1, GROUP))
        factors = self._scales.index_select(0, scale.flatten().int()).view(scale.shape)
        return (values * factors[..., None]).flatten(-2)

    def _gather(self, weight: torch.Tensor, scale: torch.Tensor | None, index: torch.Tensor) -> torch.Tensor:
        picked = weight.index_select(0, index)
        return picked if scale is None else self.decode(picked, scale.index_select(0, index))

    def __call__(self, rows: torch.Tensor, ids: torch.Tensor, weights: ExpertWeights, first: int) -> torch.Tensor:
        """See the module."""
        count = weights.w13.shape[0]
        outputs = []
        for part, chosen in zip(rows.split(ROUTES_AT_ONCE), ids.split(ROUTES_AT_ONCE), strict=True):
            local = _is_local(chosen, first, count)
            index = torch.where(local, chosen - first, torch.zeros_like(chosen)).int()
            w13 = self._gather(weights.w13, weights.w13_scale, index)
            gate, up = torch.bmm(w13, part[:, :, None]).squeeze(-1).chunk(2, dim=-1)
            w2 = self._gather(weights.w2, weights.w2_scale, index)
            out = torch.bmm(w2, (F.silu(gate) * up)[:, :, None]).squeeze(-1)
            outputs.append(torch.where(local[:, None], out, torch.zeros_like(out)))
        return torch.cat(outputs)


OPERATORS: dict[str, Callable[[], ExpertOperator]] = {"stock": StockOperator, "torch": TorchOperator}
