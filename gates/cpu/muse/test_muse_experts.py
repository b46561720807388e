# SPDX-License-Identifier: Apache-2.0
"""The latent MoE against the reference, both expert kernels, every split of 8 ranks; faults it must show."""

import os

os.environ.setdefault("PT_HPU_LAZY_MODE", "1")

import pytest
import torch

from gates.checkpoints import muse
from gates.checkpoints.muse_shapes import SHAPES
from gates.oracle import mxfp4
from gates.oracle.muse.model import MuseReference
from vllm_gaudi.models.muse_spark import experts as experts_module
from vllm_gaudi.models.muse_spark.expert_ops import OPERATORS, TorchOperator
from vllm_gaudi.models.muse_spark.experts import MuseExperts
from vllm_gaudi.models.muse_spark.placement import Placement

SHAPE = SHAPES["tiny"]
EXPERTS, LATENT, INNER, ROUTES = 16, 96, 256, 3
STEP = 2.0**-8  # one bf16 step
TOKENS = 21


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return MuseReference(muse.write(tmp_path_factory.mktemp("muse"), SHAPE, mxfp4=True), "w4a16")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One process stands for every rank: the sum over ranks is taken by the tests."""
    monkeypatch.setattr(experts_module, "tensor_model_parallel_all_reduce", lambda rows: rows)


def build(reference, layer, operator="torch", rank=0, world=1, groups=1, chunk_bytes=1 << 27) -> MuseExperts:
    weights = reference.weights(layer)
    packed = f"{weights.prefix}mlp.experts.0.up_proj.weight_scale" in reference.checkpoint
    placement = Placement(rank, world, groups, EXPERTS, LATENT, INNER)
    made = MuseExperts(placement, packed, 1e-8, OPERATORS[operator](), chunk_bytes, torch.bfloat16)
    for expert in range(EXPERTS):
        for part in ("gate", "up", "down"):
            for kind in ("weight", "weight_scale") if packed else ("weight",):
                name = f"{weights.prefix}mlp.experts.{expert}.{part}_proj.{kind}"
                made.load(expert, part, kind, reference.checkpoint.get(name))
    made.post_expert_norm.weight.data.copy_(weights.tensor("mlp.experts.post_expert_norm.weight"))
    return made.to("hpu")


@pytest.fixture(scope="module")
def routed():
    """Latent rows, routing weights, ids: every group hit, one token with all routes in one group."""
    generator = torch.Generator().manual_seed(3)
    latent = torch.randn(TOKENS, LATENT, generator=generator).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:ROUTES] for _ in range(TOKENS)])
    ids[0], ids[1] = torch.tensor([0, 1, 2]), torch.tensor([13, 14, 15])
    weights = torch.rand(TOKENS, ROUTES, generator=generator) + 0.1
    return latent, weights / weights.sum(-1, keepdim=True) * 2.5, ids


def call(made, routed):
    with torch.inference_mode():
        return made(*(value.to("hpu") for value in routed)).cpu()


def relative(got, expected):
    return float((got.float() - expected.float()).abs().max() / expected.float().abs().max())


@pytest.mark.parametrize("operator", sorted(OPERATORS))
@pytest.mark.parametrize("layer", [0, 1], ids=["bf16", "mxfp4"])
def test_experts_equal_the_reference(reference, routed, operator, layer):
    latent, weights, ids = routed
    expected = reference.combine(reference.weights(layer), latent, weights, ids)
    got = call(build(reference, layer, operator), routed)
    assert got.dtype == torch.bfloat16
    assert relative(got, expected) <= 2 * STEP


def test_plain_kernel_decodes_all_codes_and_scales_as_the_reference():
    packed = torch.tensor([low | (low + 1) << 4 for low in range(0, 16, 2)] * 2, dtype=torch.uint8).expand(256, 16)
    scale = torch.arange(256, dtype=torch.uint8)[:, None]
    got = TorchOperator().decode(packed.contiguous(), scale)
    expected = mxfp4.dequantize(packed.contiguous(), scale).to(torch.bfloat16)
    assert ((got == expected) | (got.isnan() & expected.isnan())).all()
    assert got.signbit().equal(expected.signbit())


@pytest.mark.parametrize("operator", sorted(OPERATORS))
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_eight_ranks_in_any_split_give_the_row_of_one(reference, routed, operator, groups):
    """Rows summed in fp32 over the ranks; non-local rows are exact zeros, each row has as many parts as slices."""
    latent, _, ids = (value.to("hpu") for value in routed)
    with torch.inference_mode():
        whole = build(reference, 1, operator).rows(latent, ids).cpu()
        ranks = [build(reference, 1, operator, rank, 8, groups) for rank in range(8)]
        parts = torch.stack([made.rows(latent, ids).cpu() for made in ranks])
    assert parts.dtype == torch.float32
    present = (parts != 0).any(-1)
    for rank, made in enumerate(ranks):
        first = made.placement.first_expert
        owned = (routed[2].flatten() >= first) & (routed[2].flatten() < first + made.placement.local_experts)
        assert present[rank].equal(owned)
    assert (present.sum(0) == 8 // groups).all()
    assert relative(parts.sum(0), whole) <= 4 * STEP


def test_a_norm_before_the_sum_over_ranks_is_another_result(reference, routed):
    """The fault the fp32 all-reduce before the norm is there to avoid."""
    latent, _, ids = (value.to("hpu") for value in routed)
    ranks = [build(reference, 1, rank=rank, world=8, groups=2) for rank in range(8)]
    with torch.inference_mode():
        parts = [made.rows(latent, ids) for made in ranks]
        norm = ranks[0].post_expert_norm
        right, wrong = norm(sum(parts)).cpu(), sum(norm(part) for part in parts).cpu()
        zero = norm(torch.zeros_like(parts[0])).cpu()
    assert relative(wrong, right) > 0.3
    assert zero.abs().max() == 0


def test_the_router_weight_counts_which_it_would_not_before_the_norm(reference, routed):
    latent, weights, ids = routed
    made = build(reference, 1)
    doubled = weights * torch.tensor([2.0, 1.0, 0.5])
    assert relative(call(made, (latent, doubled, ids)), call(made, routed)) > 0.1
    expected = reference.combine(reference.weights(1), latent, doubled, ids)
    assert relative(call(made, (latent, doubled, ids)), expected) <= 2 * STEP


def test_gate_and_up_swapped_is_another_result(reference, routed):
    made = build(reference, 1)
    right = call(made, routed)
    for name in ("w13", "w13_scale"):
        gate, up = getattr(made, name).data.chunk(2, dim=1)
        getattr(made, name).data = torch.cat((up, gate), dim=1)
    assert relative(call(made, routed), right) > 0.1


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_token_chunks_change_nothing_and_bound_the_rows_of_a_reduction(reference, routed, operator, monkeypatch):
    whole = call(build(reference, 1, operator), routed)
    sizes = []
    monkeypatch.setattr(
        experts_module, "tensor_model_parallel_all_reduce", lambda rows: (sizes.append(rows.nbytes), rows)[1]
    )
    limit = 4 * ROUTES * LATENT * 4
    assert relative(call(build(reference, 1, operator, chunk_bytes=limit), routed), whole) <= STEP
    assert sizes == [limit] * 5 + [limit // 4]


def test_slicing_packed_tensors_is_slicing_decoded_ones(reference):
    weights = reference.weights(1)
    at = f"{weights.prefix}mlp.experts.7."
    read = reference.checkpoint.get
    for rank in range(8):
        placement = Placement(rank, 8, 2, EXPERTS, LATENT, INNER)
        for part, cut in (("gate", placement.rows), ("down", placement.columns)):
            weight, scale = read(f"{at}{part}_proj.weight"), read(f"{at}{part}_proj.weight_scale")
            whole = cut(mxfp4.dequantize(weight, scale))
            assert mxfp4.dequantize(cut(weight), cut(scale)).equal(whole)


def test_published_split_over_eight_cards():
    """Two groups of four: 128 experts each, a quarter of the intermediate size; bytes of the spec's arithmetic."""
    shares = [Placement(rank, 8, 2, 256, 4096, 4096) for rank in range(8)]
    assert [share.first_expert for share in shares] == [0] * 4 + [128] * 4
    assert {share.width for share in shares} == {1024}
    with torch.device("meta"):
        made = MuseExperts(shares[5], True, 1e-8, None, 1, torch.bfloat16)
    held = sum(p.nbytes for n, p in made.named_parameters() if n.startswith("w"))
    assert held == 128 * 6_684_672


@pytest.mark.parametrize(
    ("world", "groups", "experts", "latent", "inner", "message"),
    [
        (8, 3, 256, 4096, 4096, "EXPERT_GROUPS=3 does not divide tensor parallel size 8"),
        (8, 8, 12, 4096, 4096, "num_local_experts 12 cannot be split into 8"),
        (8, 2, 256, 4080, 4096, "moe_hidden_size 4080 is no multiple of 32"),
        (8, 1, 256, 4096, 128, "moe_intermediate_size 128 over 8 ranks"),
        (3, 1, 256, 4096, 4096, "moe_intermediate_size 4096 over 3 ranks"),
    ],
)
def test_misaligned_sizes_are_refused(world, groups, experts, latent, inner, message):
    with pytest.raises(ValueError, match=message):
        Placement(0, world, groups, experts, latent, inner)
