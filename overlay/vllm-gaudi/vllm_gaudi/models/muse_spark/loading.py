# SPDX-License-Identifier: Apache-2.0
"""Load a checkpoint with every tensor accounted for; expert tensors go straight to this rank's share."""

from collections.abc import Iterable, Iterator
from types import SimpleNamespace

import torch
from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.models.utils import AutoWeightsLoader

from vllm_gaudi.models.beam.inventory import unpack
from vllm_gaudi.models.beam.tensor_values import check_values as check_damage
from vllm_gaudi.models.beam.tensor_values import role_of
from vllm_gaudi.models.muse_spark.inventory import (
    EXPERTS,
    MuseCheckpointError,
    MuseInventory,
    expected_tensors,
    text_name,
)

# Only loggers below "vllm" have a handler.
logger = init_logger(f"vllm.{__name__}")
SUSPECT_LOW, SUSPECT_HIGH = 2, 252  # scale bytes outside lose values as subnormals or overflow
NAN = 255


def checked_tensors(
    model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """`weights` that are served, as `model....`, one tensor per expert matrix, each checked; meta tensors do as well.

    Reports the checkpoint at the end.

    Raises:
        MuseCheckpointError: tensors that are missing, unknown, repeated or of another type than the quantisation
            section says.
    """
    config, layers = model.config, model.model.layers
    inventory = MuseInventory(expected_tensors(config, lambda layer: layers[layer].mlp.experts.packed))
    # Stacked experts are as wide as the latent space, not as the hidden states.
    stacked = SimpleNamespace(
        hidden_size=config.moe_hidden_size,
        moe_intermediate_size=config.moe_intermediate_size,
        num_experts=config.num_local_experts,
    )
    skipped = 0
    for stored, tensor in weights:
        name = text_name(stored)
        if name is None:
            skipped += 1
            continue
        for part_name, part in unpack(name, tensor, stacked):
            inventory.take(part_name, part)
            yield part_name, part
    inventory.finish()
    census = ", ".join(f"{n} {str(dtype).removeprefix('torch.')}" for dtype, n in inventory.dtypes.most_common())
    logger.info_once(
        "Muse Spark checkpoint: %d tensors (%s), %d of vision, audio and buffers skipped",
        len(inventory.seen),
        census,
        skipped,
    )


def check_values(name: str, part: torch.Tensor) -> None:
    """Refuse a damaged scale or router; `part` is any part of tensor `name`. Says once that products are not exact.

    Raises:
        MuseCheckpointError: the E8M0 byte for NaN, or a value beside the matrices that is not finite.
    """
    if (role := role_of(name)) in ("plain", "router"):
        check_damage(name, role, part, MuseCheckpointError)
    elif name.endswith("_scale") and part.numel():
        low, high = (int(edge) for edge in part.aminmax())
        if high == NAN:
            raise MuseCheckpointError(f"{name}: holds scale byte 255 (NaN); the file is damaged, fetch it again")
        if low < SUSPECT_LOW or high > SUSPECT_HIGH:
            logger.warning_once(
                "Muse Spark checkpoint: scale bytes outside %d..%d, some products are not exact",
                SUSPECT_LOW,
                SUSPECT_HIGH,
            )


def load_checked(model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
    """Load `weights` into `model` and return the names of the parameters loaded.

    Raises:
        MuseCheckpointError: see `checked_tensors` and `check_values`. Parameters may have been written by then; the
            server does not start.
    """
    loaded: set[str] = set()

    def taken() -> Iterator[tuple[str, torch.Tensor]]:
        for name, part in checked_tensors(model, weights):
            check_values(name, part)
            head, found, tail = name.partition(EXPERTS)
            if not found or not tail.split(".", 1)[0].isdecimal():
                yield name, part
                continue
            expert, projection, kind = tail.split(".")
            target = model.get_submodule(f"{head}{EXPERTS[:-1]}")
            parameter = target.load(int(expert), projection.removesuffix("_proj"), kind, part)
            loaded.add(f"{head}{EXPERTS}{parameter}")

    dense = AutoWeightsLoader(model).load_weights(taken(), mapper=model.hf_to_vllm_mapper)
    return loaded | dense
