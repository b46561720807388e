# SPDX-License-Identifier: Apache-2.0
"""Controls for suspected upstream faults: repairs applied for one run, to show that the named cause is the cause."""

from __future__ import annotations

from typing import Any


def redirect_padding() -> None:
    """N-gram drafting in a mixed batch: padding of shorter requests goes to the padding block, not to their slot 0."""
    from vllm_gaudi.v1.worker.hpu_model_runner import HPUModelRunner

    build = HPUModelRunner._create_decode_input_data

    def create(self: Any, num_decodes: int, num_scheduled_tokens: Any, *args: Any, **kwargs: Any) -> Any:
        data = build(self, num_decodes, num_scheduled_tokens, *args, **kwargs)
        scheduled = list(num_scheduled_tokens[:num_decodes])
        widest = max(scheduled)
        slots = data.attn_metadata.slot_mapping
        for row, count in enumerate(scheduled):
            for column in range(count, widest):
                slots[row * widest + column] = self._PAD_BLOCK_ID * self.attn_block_size + column
        return data

    HPUModelRunner._create_decode_input_data = create
