# SPDX-License-Identifier: Apache-2.0
"""Properties of the layers: residual table, positions, softcap, gate, activation, cuts, settings."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from vllm_gaudi.models.beam.attention import BeamAttention
from vllm_gaudi.models.beam.layers import (
    BeamRMSNorm,
    DepthScaledAdd,
    Positions,
    residual_coefficients,
    rotate,
    softcap,
    swiglu,
)
from vllm_gaudi.models.beam.rounding import Rounding
from vllm_gaudi.models.beam.settings import BeamSettings

PLAIN = Rounding()


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("layer", "counts"), [(0, (2, 3)), (1, (4, 5)), (2, (6, 7)), (3, (8, 9)), (51, (104, 105))])
def test_residual_coefficients(layer, counts):
    for sublayer, n in enumerate(counts):
        branch, residual = residual_coefficients(layer, sublayer)
        assert branch == pytest.approx(1 / math.sqrt(n), rel=1e-12)
        assert residual == pytest.approx(math.sqrt((n - 1) / n), rel=1e-12)
        assert branch**2 + residual**2 == pytest.approx(1, rel=1e-12)


def test_residual_add_rounds_both_products_before_the_sum():
    branch, stream = normal(4096, seed=1).bfloat16(), normal(4096, seed=2).bfloat16()
    add = DepthScaledAdd(3, 0, PLAIN)
    a, b = residual_coefficients(3, 0)
    once = (branch.float() * a + stream.float() * b).bfloat16()
    got = add(branch, stream)
    assert got.equal((branch.float() * a).bfloat16() + (stream.float() * b).bfloat16())
    assert not got.equal(once), "the fixture must tell one rounding from three"


def test_residual_scalar_is_not_rounded_to_bf16_first():
    """A Python scalar that a device turns into bf16 before the product gives another result."""
    x = normal(4096, seed=3).bfloat16()
    a, _ = residual_coefficients(0, 1)
    assert not (x * torch.tensor(a).bfloat16()).equal((x.float() * a).bfloat16())
    assert DepthScaledAdd(0, 1, PLAIN)(x, torch.zeros_like(x)).equal((x.float() * a).bfloat16())


def test_query_scale_values():
    table = Positions(262144, 4, 1e4).query_scale
    for position, value in ((0, 1.0000489), (2047, 1.0717734), (262143, 1.6257695)):
        assert float(table[position]) == pytest.approx(value, abs=2e-7)
    # On bf16 queries the scale, and with it an off-by-one, first shows at position 40.
    queries = (1 + torch.arange(128) / 128).bfloat16()
    scaled = (queries.float() * table[:64, None]).bfloat16()
    assert int((scaled != queries).any(-1).nonzero()[0]) == 40


def test_rope_tables_are_fp32_and_padding_reads_row_zero():
    tables = Positions(1024, 16, 1e4)
    cos, sin, scale = tables(torch.tensor([[0, 1000, -1]], dtype=torch.int32))
    assert cos.dtype == sin.dtype == scale.dtype == torch.float32
    assert cos.shape == (1, 3, 1, 8)
    angle = 1000.0 / torch.tensor(1e4).double() ** (torch.arange(0, 16, 2).double() / 16)
    assert torch.allclose(cos[0, 1, 0].double(), angle.cos(), atol=1e-4)
    assert (cos[0, 2] == 1).all()
    assert (sin[0, 2] == 0).all()


@pytest.mark.parametrize("position", [9_999, 10_001, 131_071, 262_143, 1_048_575])
def test_positions_beyond_ten_thousand_stay_sound(position):
    """Angles off by fp32 alone, rotation a rotation, scales growing: no far place gives NaN or a constant."""
    tables = Positions(position + 1, 16, 1e4)
    cos, sin, scale = (table[0, 0].double() for table in tables(torch.tensor([position])))
    angle = position / 1e4 ** (torch.arange(0, 16, 2).double() / 16)
    # An fp32 angle of a million is known to 2**-4; its sine and cosine belong to one angle all the same.
    assert (cos - angle.cos()).abs().max() <= position * 2**-23
    assert (cos**2 + sin**2 - 1).abs().max() < 1e-6
    assert float(scale) == pytest.approx((1 + (position + 1) / 2048) ** 0.1, rel=1e-6)


def test_rope_turns_pairs_of_halves_and_keeps_lengths():
    cos, sin, _ = Positions(64, 8, 1e4)(torch.tensor([5]))
    x = normal(1, 3, 8)
    turned = rotate(x, cos, sin, PLAIN)
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-5)
    assert turned[0, 0, 0] == x[0, 0, 0] * cos[0, 0, 0] - x[0, 0, 4] * sin[0, 0, 0]


def test_norm_applies_its_weight_before_rounding():
    x = normal(64, 64, seed=4).bfloat16()
    norm = BeamRMSNorm(64, 1e-6, PLAIN)
    norm.weight.data = 1 + 0.2 * normal(64, seed=5)
    wide = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    assert norm(x).equal((norm.weight * wide).bfloat16())
    assert not norm(x).equal(norm.weight.bfloat16() * wide.bfloat16())


def test_softcap():
    z = torch.tensor([0.0, 30.0, -30.0, 1e4, -1e4, 61.5], dtype=torch.bfloat16)
    capped = softcap(z, 30.0, PLAIN)
    assert capped.dtype == torch.float32
    assert capped.abs().max() <= 30
    assert float(capped[1]) == pytest.approx(22.847826, abs=1e-5)
    assert float(capped[1]) == -float(capped[2])
    assert softcap(z, None, PLAIN).equal(z.float())
    # Values near saturation stay apart; in bf16 they fall together.
    steep = softcap(torch.linspace(60, 90, 64).bfloat16(), 30.0, PLAIN)
    assert steep.unique().numel() > 4 * steep.bfloat16().unique().numel()


def test_zero_gate_halves_and_a_bias_closes_one_head():
    holder = SimpleNamespace(rounding=PLAIN, gate_bias=torch.zeros(4))
    attended = normal(2, 4, 8, seed=6).bfloat16()
    zero = torch.zeros_like(attended)
    assert BeamAttention.gate(holder, attended, zero).equal(attended / 2)
    holder.gate_bias[2] = -1e4
    gated = BeamAttention.gate(holder, attended, zero)
    assert (gated[:, 2] == 0).all()
    assert gated[:, [0, 1, 3]].equal(attended[:, [0, 1, 3]] / 2)


def test_swiglu_is_not_computed_in_bf16():
    """Every activation of the fixture differs from one with a bf16 SiLU."""
    gate, up = normal(4096, seed=7).bfloat16(), normal(4096, seed=8).bfloat16()
    got = swiglu(torch.cat((gate, up)), PLAIN)
    rough = F.silu(gate) * up
    differs = got != rough
    picked = torch.cat((gate[differs], up[differs]))
    assert differs.sum() > 100
    assert (swiglu(picked, PLAIN) != F.silu(gate[differs]) * up[differs]).all()
    assert swiglu(torch.zeros(8), PLAIN).abs().max() == 0


def test_loop_ends_each_layer_once_in_lazy_mode_only(model, tokens, monkeypatch):
    """Where the graph ends is the distribution's rule (every layer of a prompt, no layer of a decode step)."""
    from vllm_gaudi.models.beam import model as beam_model

    ended = []
    monkeypatch.setattr(beam_model, "end_layer", lambda: ended.append(1))
    harness = model("grid8")
    monkeypatch.setattr(harness.model.model, "lazy", False)
    harness.hidden(tokens(17, 3))
    assert ended == []
    monkeypatch.setattr(harness.model.model, "lazy", True)
    harness.hidden(tokens(17, 3))
    assert len(ended) == 8


def test_layer_class_is_not_cut_by_the_plugin(model):
    """The plug-in hooks classes whose name ends in DecoderLayer; ours must not be one of them."""
    from vllm_gaudi.v1.worker.hpu_model_runner import get_target_layer_suffix_list

    names = {type(module).__name__ for module in model("grid8").model.modules()}
    for suffix in get_target_layer_suffix_list("beam"):
        assert not [name for name in names if name.endswith(suffix)]
    # Nor may it take the tables for a rotary module whose cos and sin it prepares and deletes.
    assert not [name for name in names if name.endswith("RotaryEmbedding")]


@pytest.mark.parametrize(
    ("name", "value"),
    [("VLLM_BEAM_EXACT", "yes"), ("VLLM_BEAM_EXPERT_SLICES", "0")],
)
def test_bad_settings_are_refused_by_name(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=name):
        BeamSettings.from_environment()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("VLLM_BEAM_EXAKT", "EXACT"), ("vllm_beam_exact", "EXACT"), ("VLLM_BEAM_EXPERT_SLICE", "EXPERT_SLICES")],
)
def test_near_misses_are_refused_by_name(monkeypatch, name, meant):
    monkeypatch.setenv("VLLM_BEAM_ALWAYS_CONSTRAIN_OUTPUT", "0")  # the chat front end's
    BeamSettings.from_environment()
    monkeypatch.setenv(name, "1")
    with pytest.raises(ValueError, match=f"{name} is not a setting: did you mean VLLM_BEAM_{meant}"):
        BeamSettings.from_environment()


def test_settings_defaults(monkeypatch):
    for name in ("VLLM_BEAM_EXACT", "VLLM_BEAM_EXPERT_SLICES"):
        monkeypatch.delenv(name, raising=False)
    assert BeamSettings.from_environment() == BeamSettings(exact=False, expert_slices=1)
