# SPDX-License-Identifier: Apache-2.0
"""The memory plan: weights against a built model and the published figure, a million tokens, a metered small model."""

import json

import pytest

from gates.checkpoints import muse
from gates.checkpoints.muse_shapes import SHAPES
from gates.cpu.muse.memory_probe import TOKENS
from vllm_gaudi.models.muse_spark import memory_plan
from vllm_gaudi.models.muse_spark.config import MuseSparkTextConfig
from vllm_gaudi.models.muse_spark.memory_plan import CARD_GIB, GIB, MemoryPlan, Served

MIB = 1 << 20
PATIENCE = 3000  # seconds for an engine run; a busy machine must not decide a test
PORT_PAGE_WEIGHTS = 66.0  # GiB a card


def test_weights_are_those_of_the_built_model(model):
    network = model("tiny", True).model
    plan = MemoryPlan(MuseSparkTextConfig(**SHAPES["tiny"]), Served(tokens=512, ranks=1, expert_groups=1))
    parameters = sum(p.nbytes for p in network.parameters())
    tables = sum(b.nbytes for name, b in network.named_buffers() if name.startswith("model.positions."))
    assert plan.weights()["position tables"] == tables
    assert sum(plan.weights().values()) == parameters + tables


def test_published_weights_are_the_port_page_s():
    weights = MemoryPlan(MuseSparkTextConfig(), Served()).weights()
    gib = {name: size / GIB for name, size in weights.items()}
    assert gib["experts, MXFP4"] == pytest.approx(47.81, abs=0.01)
    assert gib["experts, BF16"] == pytest.approx(6.0, abs=0.01)
    assert sum(gib.values()) - gib["position tables"] == pytest.approx(PORT_PAGE_WEIGHTS, abs=0.1)


def test_a_million_tokens_fit_on_a_card_with_windowed_kv_and_not_without():
    plan = MemoryPlan(MuseSparkTextConfig(), Served())
    assert plan.kv_bytes() == (8192 + 3 * 81 + 1) * MIB
    rows, keys = plan.tile()
    assert rows == 16
    assert plan.workspace() < 2 * GIB
    assert 4 * plan.heads * 2 * rows * keys >= 2 * GIB, "the next larger tile would be over the budget"
    total = sum(plan.items().values())
    print(f"1M tokens: {total / GIB:.2f} of {CARD_GIB} GiB")
    assert total < CARD_GIB * GIB
    full_length = (1 << 20) * plan.kv().full_length_token_bytes
    assert total - plan.kv_bytes() + full_length > CARD_GIB * GIB


@pytest.mark.parametrize(("tokens", "requests"), [(1 << 18, 4), (1 << 19, 2), (1 << 20, 1)])
def test_the_served_shapes_fit(tokens, requests):
    plan = MemoryPlan(MuseSparkTextConfig(), Served(tokens=tokens, requests=requests))
    assert sum(plan.items().values()) < CARD_GIB * GIB


def test_command_prints_the_items_and_judges(tmp_path, capsys):
    assert memory_plan.main(["--tokens", str(1 << 20)]) == 0
    assert "GiB  of 94.62" in capsys.readouterr().out
    assert memory_plan.main(["--tokens", str(1 << 20), "--memory-gib", "70"]) == 1
    folder = muse.write(tmp_path / "made", SHAPES["tiny"], mxfp4=True)
    assert memory_plan.main([str(folder), "--ranks", "4", "--tokens", "512", "--chunk", "128"]) == 0
    capsys.readouterr()
    assert memory_plan.main([str(folder), "--ranks", "3"]) == 3
    assert "does not divide tensor parallel size 3" in capsys.readouterr().err
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert memory_plan.main([str(folder)]) == 3
    assert "config.json: model_type 'llama' is not Muse Spark's" in capsys.readouterr().err
    assert memory_plan.main([str(tmp_path / "none")]) == 3


@pytest.mark.parametrize("option", [n for n in vars(Served()) if n != "packed"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_sizes_without_meaning_get_no_verdict(option, value, capsys):
    assert memory_plan.main([f"--{option.replace('_', '-')}", value]) == 3
    assert f"{option} is {value}, must be at least 1" in capsys.readouterr().err


def test_no_verdict_for_heads_that_do_not_divide_or_no_card(capsys):
    assert memory_plan.main(["--ranks", "256", "--expert-groups", "256"]) == 3
    assert "256 ranks do not divide num_attention_heads 128" in capsys.readouterr().err
    assert memory_plan.main(["--memory-gib", "nan"]) == 3


@pytest.mark.parametrize("text", ["[]", "null", '"x"', '{"model_type": ["x"]}'])
def test_another_config_file_is_refused_by_name(text, tmp_path, capsys):
    (tmp_path / "config.json").write_text(text)
    assert memory_plan.main([str(tmp_path)]) == 3
    assert str(tmp_path / "config.json") in capsys.readouterr().err


def test_packed_layers_are_those_of_the_checkpoint_s_own_section(tmp_path, capsys):
    folder = muse.write(tmp_path / "made", SHAPES["tiny"], mxfp4=True)
    path = folder / "config.json"
    whole = json.loads(path.read_text())

    def packed_bytes(section):
        path.write_text(json.dumps({**whole, "quantization_config": section}))
        config, quant = memory_plan.read_config(str(folder))
        served = Served(tokens=512, ranks=1, expert_groups=1, packed=False)
        return MemoryPlan(config, served, quant).weights()["experts, MXFP4"]

    section = whole["quantization_config"]
    one = packed_bytes(section) / 5  # seven sparse layers, the first and the last are excluded
    assert one > 0
    assert packed_bytes(None) == 0
    assert packed_bytes({**section, "exclude": [*section["exclude"], "model.layers.3"]}) == 4 * one
    assert packed_bytes({**section, "exclude": []}) == 7 * one
    path.write_text(json.dumps({**whole, "quantization_config": {"quant_method": "fp8"}}))
    assert memory_plan.main([str(folder)]) == 3
    assert "quantization_config is not Quark's" in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.long
def test_a_metered_prefill_stays_under_the_plan(tmp_path, monkeypatch):
    """Scaled model, thousands of cached keys, tiles of a small budget; the kernel keeps its workspace."""
    from gates.hpusim import testing, tokenizer
    from vllm_gaudi.runtime import settings

    limits = {
        settings.variable("attention_workspace_bytes"): str(4 * MIB),
        settings.variable("compact_bias_keys"): "1024",
        settings.variable("memory_margin_check"): "off",
    }
    shape = {**SHAPES["served"], "max_position_embeddings": 8192, "hidden_size": 256, "moe_hidden_size": 128}
    shape["num_attention_heads"] = 16  # fewer are counted as 16
    folder = muse.write(tmp_path, shape, how=muse.SERVED, mxfp4=True)
    tokenizer.save(folder)
    run = testing.run_engine(
        folder,
        [],
        env={
            **limits,
            "VLLM_SKIP_WARMUP": "true",
            "VLLM_MUSE_MOE_CHUNK_MIB": "1",
            "VLLM_MUSE_EXPERT_GROUPS": "1",
            "HPUSIM_FAULT_ATTENTION_WORKSPACE": "oom",
            "HPUSIM_METERS": "",
        },
        call="gates.cpu.muse.memory_probe:prefill_peak",
        timeout=PATIENCE,
        max_model_len=8192,
        max_num_batched_tokens=512,
        num_gpu_blocks_override=100,
    )
    for name, value in limits.items():
        monkeypatch.setenv(name, value)
    settings.current.cache_clear()
    try:
        served = Served(tokens=TOKENS, chunk=512, ranks=1, expert_groups=1, layers_in_flight=1, moe_chunk_bytes=MIB)
        plan = MemoryPlan(MuseSparkTextConfig(**shape), served)
        items = plan.items()
        outside = ("weights", "KV cache", "decode graph")
        planned = sum(size for name, size in items.items() if not name.startswith(outside))
        kept = plan.workspace()
    finally:
        monkeypatch.undo()
        settings.current.cache_clear()
    found = run.answer["call"]
    measured = found["transient"] / MIB
    print(f"transient: {measured:.2f} MiB measured, {planned / MIB:.2f} planned, workspace {kept / MIB:.2f}")
    assert found["kv"] == 101 * plan.kv().block_bytes
    assert planned / 2 < found["transient"] <= planned
