# SPDX-License-Identifier: Apache-2.0
"""What the layer-by-layer CPU references share: how layers follow one another."""

from collections.abc import Callable

import torch

Trace = Callable[[str, torch.Tensor], None]
TILE_FROM = 2048  # query rows above which attention is tiled to bound memory
TILE = 512


def no_trace(name: str, value: torch.Tensor) -> None:
    """A trace that keeps nothing."""


class StreamingReference:
    """Base of the references. A subclass has `shape.num_hidden_layers`, `embed`, `layer` and `head`."""

    def run_layers(
        self, hidden: torch.Tensor, positions: torch.Tensor, start: int = 0, stop: int | None = None
    ) -> torch.Tensor:
        """Layers `start` to `stop` (exclusive) on the residual stream `hidden` [T, H] at `positions` [T]."""
        for layer in range(start, self.shape.num_hidden_layers if stop is None else stop):
            hidden = self.layer(layer, hidden, positions)
        return hidden

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Softcapped fp32 logits [T, V] of token `ids` [T]."""
        positions = torch.arange(ids.shape[0])
        with torch.inference_mode():
            return self.head(self.run_layers(self.embed(ids), positions))
