# SPDX-License-Identifier: Apache-2.0
"""A small Muse Spark with MXFP4 experts served over HTTP on the emulated Gaudi, scored on its own text.

The floor is the distance between two CPU references with served numerics that differ only in where attention rounds,
which a fused kernel is free to choose. Prompts lie below and beyond the window of 256; prefill is chunked.
"""

import openai
import pytest
import torch

from gates.checkpoints import muse
from gates.checkpoints.muse_shapes import SHAPES
from gates.cpu.beam.served import ask, mean_difference
from gates.cpu.muse.served_floor import FACTOR, GAP_FACTOR, distances
from gates.hpusim import testing, tokenizer
from gates.oracle.muse.model import MuseReference

pytestmark = pytest.mark.engine

COUNT = 6
PATIENCE = 900  # seconds to come up; a busy machine must not decide a test


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(340, (length,), generator=generator).tolist() for length in (5, 257, 300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = muse.write(tmp_path_factory.mktemp("muse-served"), SHAPES["served"], how=muse.SERVED, mxfp4=True)
    tokenizer.save(path)
    return path


def refusal(server, part) -> str:
    content = [{"type": "text", "text": "what is this?"}, part]
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.chat.completions.create(
            model="tiny", max_tokens=2, messages=[{"role": "user", "content": content}]
        )
    return str(caught.value)


@pytest.fixture(scope="module")
def one(folder):
    """Answers, log and refusals of one rank."""
    parts = (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    )
    with testing.serve(folder, timeout=PATIENCE, max_num_batched_tokens=256, max_model_len=512) as server:
        answers = ask(server, prompts(), COUNT)
        yield answers, server.log(), [refusal(server, part) for part in parts]


@pytest.fixture(scope="module")
def two(folder):
    """Answers of two ranks, each with half of the experts."""
    with testing.serve(
        folder, timeout=PATIENCE, max_num_batched_tokens=256, max_model_len=512, tensor_parallel_size=2
    ) as server:
        yield ask(server, prompts(), COUNT)


def test_served_text_follows_the_reference(one, folder):
    found = distances(folder, one[0])
    print(f"one rank: {found}")
    assert found.served <= FACTOR * found.floor
    assert found.worst_gap <= GAP_FACTOR * found.floor_gap


@pytest.mark.long
def test_two_ranks_with_split_experts_follow_the_reference_and_one_rank(one, two, folder):
    found, between = distances(folder, two), mean_difference(one[0], two)
    print(f"two ranks: {found}; to one rank {between:.4f}")
    assert found.served <= FACTOR * found.floor
    assert found.worst_gap <= GAP_FACTOR * found.floor_gap
    assert between <= FACTOR * found.floor


def test_a_wrong_model_is_further_away_than_the_floor(one, folder, monkeypatch):
    """Control: a reference whose experts are weighted alike."""
    floor = distances(folder, one[0]).floor
    original = MuseReference.combine

    def combine(self, weights, latent, route_weights, ids):
        return original(self, weights, latent, torch.full_like(route_weights, float(route_weights.mean()) * 2), ids)

    monkeypatch.setattr(MuseReference, "combine", combine)
    wrong = distances(folder, one[0])
    print(f"control: {wrong} (floor of the right model {floor:.4f})")
    assert wrong.served > 2 * FACTOR * floor


def test_log_says_what_was_loaded_and_whose_model_it_is(one):
    assert "Built with Muse Spark Open" in one[1]
    assert "Muse Spark checkpoint: 467 tensors (288 uint8, 147 bfloat16, 32 float32)" in one[1]


def test_image_and_audio_parts_are_refused(one):
    for message in one[2]:
        assert "400" in message
        assert "is not a multimodal model" in message
