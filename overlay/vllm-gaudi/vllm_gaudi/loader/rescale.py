# SPDX-License-Identifier: Apache-2.0
"""The Gaudi 2 range adjustment of FP8 weights and their scales, as a byte table.

Gaudi 2 has no E4M3 value above 240, so vllm-gaudi halves E4M3 weights and doubles
their scales while loading. Both act on single elements, hence commute with
slicing: here they run on the kept region only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

E4M3 = torch.float8_e4m3fn
BLOCK = 1 << 17  # bytes; a block and what is computed of it should stay in the cache
LOW, TOP, ONES, EIGHTS, SEVENTIES = (np.uint64(byte * 0x0101010101010101) for byte in (0x7F, 0x80, 0x01, 0x08, 0x70))


def halved() -> np.ndarray:
    """uint8 [256]: the E4M3 byte of half the value, rounded to even; NaN bytes and signs stay.

    With a biased exponent above 1 it is one exponent step (8 bytes) down. Below,
    half of the mantissa steps is taken, which also makes exponent 1 subnormal.
    """
    byte = np.arange(256, dtype=np.int64)
    magnitude = byte & 0x7F
    half = (magnitude >> 1) + ((magnitude >> 1) & magnitude & 1)
    result = np.where(magnitude >= 0x10, magnitude - 8, half)
    return (np.where(magnitude == 0x7F, magnitude, result) | (byte & 0x80)).astype(np.uint8)


def translate(table: np.ndarray, source: np.ndarray, target: np.ndarray) -> None:
    """`target[...] = table[source]` for uint8 arrays [R, C] or [N] of one shape; `target` may be `source`.

    `table` must be that of `halved`.
    """
    wide = source.shape[1] if source.ndim == 2 else 1
    step = max(1, BLOCK // max(1, wide))
    for start in range(0, source.shape[0], step):
        block, made = source[start : start + step], target[start : start + step]
        if block.shape[-1] % 8 or block.strides[-1] != 1 or made.strides[-1] != 1:
            made[...] = table[block]
        else:
            _translate_words(table, block.view(np.uint64), made.view(np.uint64))


def _translate_words(table: np.ndarray, words: np.ndarray, made: np.ndarray) -> None:
    """Eight bytes at a time: magnitudes 0x10 to 0x7e become 8 less, and a word with any other is looked up."""
    magnitude = words & LOW
    # The top bit of a byte tells of a magnitude below 0x10 in the one, of 0x7f in the other.
    odd = (magnitude + SEVENTIES) ^ TOP
    odd |= magnitude + ONES
    odd &= TOP
    place = np.nonzero(odd)
    looked_up = table[words[place].view(np.uint8)].view(np.uint64)
    np.subtract(words, EIGHTS, out=made)
    made[place] = looked_up


def functions_of(loader: Callable[..., Any]) -> Iterator[FunctionType]:
    """`loader` and the functions its closures hold, outermost first; the last one does the loading."""
    seen: set[int] = set()
    pending = [loader]
    while pending:
        function = pending.pop()
        function = function.__func__ if isinstance(function, MethodType) else function
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        yield function
        pending.extend(cell.cell_contents for cell in function.__closure__ or () if _holds_function(cell))


def _holds_function(cell: Any) -> bool:
    try:
        return isinstance(cell.cell_contents, FunctionType | MethodType)
    except ValueError:  # an empty cell
        return False


class Rescale:
    """Whether and how this process adjusts, learnt from the stock wrapper by running it.

    `table` is None when stock changes nothing (`VLLM_SCALE_ADJUSTMENT` off, or another FP8 flavour).

    Raises:
        RuntimeError: the stock wrapper does something else than halve and double.
    """

    def __init__(self) -> None:
        from vllm.platforms import current_platform

        from vllm_gaudi.extension.ops import gaudi_weight_wrapper

        self.wrapper_code = _inner_code(gaudi_weight_wrapper)
        self.transparent = {self.wrapper_code, _inner_code(current_platform.make_synced_weight_loader)}
        self.table = _proven(gaudi_weight_wrapper)

    def of(self, parameter: torch.nn.Parameter) -> tuple[bool, FunctionType | None]:
        """Whether tensors of `parameter` are adjusted, and the function that would load them (None: default)."""
        loader = getattr(parameter, "weight_loader", None)
        if loader is None:
            return False, None
        chain = list(functions_of(loader))
        inner = [function for function in chain if function.__code__ not in self.transparent]
        wrapped = any(function.__code__ is self.wrapper_code for function in chain)
        return wrapped and self.table is not None, inner[0] if inner else None


def _inner_code(wrapper: Callable[..., Any]) -> CodeType:
    return wrapper(lambda *args, **kwargs: None).__code__


def _proven(wrapper: Callable[..., Any]) -> np.ndarray | None:
    """The table, after comparing it with `wrapper` on all 256 bytes and on scales of every width."""
    taken: list[torch.Tensor] = []

    def stock(tensor: torch.Tensor) -> torch.Tensor:
        wrapper(lambda _, loaded: taken.append(loaded))(None, tensor)
        return taken.pop()

    every = torch.arange(256, dtype=torch.uint8, device="cpu")
    got = stock(every.view(E4M3)).view(torch.uint8).numpy()
    factor = 1.0 if np.array_equal(got, every.numpy()) else 2.0
    table = halved()
    if factor == 2.0 and not np.array_equal(got, table):
        wrong = int(np.flatnonzero(got != table)[0])
        raise RuntimeError(
            f"FP8 byte 0x{wrong:02x}: vllm-gaudi makes it 0x{got[wrong]:02x}, half would be 0x{table[wrong]:02x}; its "
            "rescale has changed, load with --load-format auto"
        )
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        scales = torch.tensor([0.0, 1e-7, 0.3, 1.0, 448.0, 6e4, float("inf")], dtype=dtype, device="cpu")
        if not stock(scales).equal(scales * factor):
            raise RuntimeError(
                f"{dtype} scales: vllm-gaudi does not multiply them by {factor}; its rescale has changed, load with "
                "--load-format auto"
            )
    return table if factor == 2.0 else None
