# SPDX-License-Identifier: Apache-2.0
"""Where the lazy graph of a forward pass ends.

The plug-in ends a graph after every module whose class name ends in
`DecoderLayer`, in prompts and decodes alike. Beam's layer is named otherwise so
that this file decides: after every layer of a prompt, where graphs are large;
in a decode step only after every k-th layer, where each launch costs host time.
"""

import habana_frameworks.torch as htorch
from vllm.forward_context import get_forward_context


class LayerCuts:
    """Ends the lazy graph after a layer when the running pass asks for it.

    Args:
        decode_every: layers per graph in decode; 0 never cuts there.
    """

    def __init__(self, decode_every: int) -> None:
        self.decode_every = decode_every
        self.lazy = htorch.utils.internal.is_lazy()

    def interval(self) -> int:
        """Layers between two cuts in the current forward pass; 0 for none."""
        if not self.lazy:
            return 0
        metadata = get_forward_context().attn_metadata
        return 1 if metadata is None or metadata.is_prompt else self.decode_every

    @staticmethod
    def cut() -> None:
        """End the graph here."""
        htorch.core.mark_step()
