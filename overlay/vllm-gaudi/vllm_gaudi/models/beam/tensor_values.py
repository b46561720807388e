# SPDX-License-Identifier: Apache-2.0
"""Values of a checkpoint's tensors that must not be served."""

import math

import torch

E4M3_MAX = 448.0
E8M0_NAN = 255


class BeamCheckpointError(ValueError):
    """A checkpoint that must not be served: which tensor, what is wrong, what to do."""


def role_of(name: str) -> str:
    """The role a tensor of this name has, as far as its values are checked; E4M3 and plain matrices alike."""
    if name.endswith("_scale"):
        return "scale"
    if ".mlp.gate." in name:
        return "router"
    return "matrix" if name.endswith("_proj.weight") else "plain"


def check_values(name: str, role: str, tensor: torch.Tensor, error: type[ValueError] = BeamCheckpointError) -> None:
    """Refuse numbers that each spoil a whole channel, every choice of experts or every logit; zeros are legal.

    Matrices are not looked at: they are nearly all of a checkpoint, and a pass over every byte is what loading costs.

    Args:
        name: for the message.
        role: as in `Expected`.
        tensor: the whole tensor or any part of it, as stored.

    Raises:
        error: a value that is not finite, a negative scale, or one that is too large: doubled for Gaudi 2's halved
            weights it must fit its own type, and times 448 fp32.
    """
    if role in ("matrix", "fp8", "packed") or not tensor.numel():
        return
    low, high = (edge.item() for edge in tensor.aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise error(f"{name}: holds NaN or infinity; the file is damaged, fetch it again")
    most = torch.finfo(torch.float32).max / 2 if role == "router" else torch.finfo(torch.bfloat16).max
    if role in ("plain", "router") and max(-low, high) > most:
        largest = low if -low > high else high
        raise error(f"{name}: holds {largest:g}, which overflows in use; the file is damaged, fetch it again")
    if role == "packed_scale" and high == E8M0_NAN:
        raise error(f"{name}: holds scale byte {E8M0_NAN} (NaN); the file is damaged, fetch it again")
    if role != "scale":
        return
    if low < 0:
        raise error(f"{name}: holds a negative scale; the file is damaged, fetch it again")
    if 2 * high > torch.finfo(tensor.dtype).max or E4M3_MAX * high > torch.finfo(torch.float32).max:
        raise error(
            f"{name}: holds the scale {high:g}; twice of it must fit {str(tensor.dtype).removeprefix('torch.')} and "
            f"{E4M3_MAX:g} times float32, or activations overflow. The file is damaged, fetch it again"
        )
