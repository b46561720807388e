# SPDX-License-Identifier: Apache-2.0
"""The quantisation section: which matrices its entries mean, and every contradiction refused by name."""

import copy
import json
import logging
import shutil

import pytest
import torch
from harness import Harness
from safetensors.torch import load_file, save_file

from gates.checkpoints.beam import IGNORE
from gates.checkpoints.beam_layout import quantization_config
from gates.checkpoints.beam_shapes import PUBLISHED, SHAPES
from gates.oracle import fp8
from vllm_gaudi.models.beam.config import BeamConfig
from vllm_gaudi.models.beam.inventory import BeamCheckpointError, Inventory, expected_tensors
from vllm_gaudi.models.beam.quant_modules import modules, resolve
from vllm_gaudi.models.beam.quant_section import check_section

SHAPE = "served"
LAYER = "model.layers.6"
EXPERTS = f"{LAYER}.mlp.experts"


def parsed(section: dict):
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig

    return CompressedTensorsConfig.from_config(copy.deepcopy(section))


def shape() -> BeamConfig:
    return BeamConfig(**copy.deepcopy(SHAPES[SHAPE]))


def plain(ignore: list[str], targets: list[str] | None = None) -> set[str]:
    """Built names of SHAPE's modules that stay unquantised."""
    section = quantization_config([*IGNORE, *ignore])
    section["config_groups"]["group_0"]["targets"] = targets or ["Linear"]
    config = parsed(section)
    resolve(config, shape())
    first = list(config.ignore)
    resolve(config, shape())
    assert config.ignore == first, "resolving twice gives the same"
    assert list(config.target_scheme_map) == ["Linear"]
    return set(config.ignore) - {"lm_head", "model.embed_tokens"}


STACK = {f"{EXPERTS}{part}.0.{name}_proj" for part in ("", ".routed_experts") for name in ("gate", "up", "down")}
GATE = {f"{LAYER}.self_attn.output_gate_proj"}
QKV = {f"{LAYER}.self_attn.qkv_proj"}
BUILT = {name for module in modules(shape()) for name in module.built}


@pytest.mark.parametrize(
    ("ignore", "expected"),
    [
        ([], set()),
        ([f"re:{EXPERTS}\\..*"], STACK),
        ([f"re:.*{EXPERTS}"], STACK),
        ([EXPERTS], STACK),
        ([f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"], STACK),  # packed
        ([f"re:{EXPERTS}.*(gate_up|down)_proj$"], STACK),
        ([f"{EXPERTS}.{e}.{n}_proj" for e in range(16) for n in ("gate", "up", "down")], STACK),
        ([f"{LAYER}.self_attn.gate_proj"], GATE),
        ([r"re:.*\.6\.self_attn\.gate_proj$"], GATE),
        ([f"{LAYER}.self_attn.output_gate_proj"], GATE),
        ([f"{LAYER}.self_attn.{n}_proj" for n in "qkv"], QKV),
        ([f"{LAYER}.self_attn.qkv_proj"], QKV),
        ([r"re:.*layers\.6\.self_attn\.qkv_proj$"], QKV),
        (["re:.*"], BUILT),
    ],
)  # fmt: skip
def test_entries_mean_modules_under_their_checkpoint_names(ignore, expected):
    assert plain(ignore) == expected


@pytest.mark.parametrize(
    ("targets", "quantised"),
    [
        ([r"re:.*\.6\.self_attn\.(q|k|v)_proj$"], QKV),
        ([f"{LAYER}.self_attn.gate_proj"], GATE),
        ([r"re:.*\.6\.mlp\.experts\.\d+\..*"], STACK),
        ([EXPERTS], STACK),
    ],
)
def test_targets_other_than_linear_mean_what_they_name(targets, quantised):
    assert plain([], targets) == BUILT - quantised


@pytest.mark.parametrize(
    ("ignore", "message"),
    [
        (
            [f"{EXPERTS}.5.{n}_proj" for n in ("gate", "up", "down")],
            rf"ignores 3 of the 48 matrices of {EXPERTS} \(experts 5; first {EXPERTS}.5.gate_proj\).*share one format",
        ),
        ([f"{EXPERTS}.0.gate_proj"], rf"ignores 1 of the 48 matrices of {EXPERTS} \(experts 0;"),
        ([r"re:.*experts\.1\d\."], r"ignores 18 of the 48 .*layers.3.mlp.experts \(experts 10, 11, 12, 13, 14, 15;"),
        ([f"{EXPERTS}.down_proj"], r"ignores 16 of the 48 .*\(experts 0, 1, 2, 3, 4, 5, 6, 7, \.\.\.;"),
        ([f"{LAYER}.self_attn.q_proj"], "self_attn.q_proj but not .*k_proj, .*v_proj, which are one matrix"),
        (["re:.*mlp.gate"], r"ignores model.layers.0.mlp.gate_proj but not model.layers.0.mlp.up_proj"),
    ],
)
def test_a_part_of_what_is_built_as_one_is_refused(ignore, message):
    with pytest.raises(ValueError, match=message):
        plain(ignore)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([r"re:.*\.mlp\.experts\.[0-7]\."], r"targets 24 of the 48 matrices of model.layers.3.mlp.experts"),
        ([f"{LAYER}.self_attn.k_proj"], "targets .*k_proj but not"),
    ],
)
def test_a_part_that_is_targeted_is_refused(targets, message):
    with pytest.raises(ValueError, match=message):
        plain([], targets)


def test_a_quantised_head_is_refused():
    section = quantization_config([])
    section["config_groups"]["group_0"]["targets"] = ["Linear", "re:.*lm_head"]
    with pytest.raises(ValueError, match="targets lm_head, which Beam keeps in BF16"):
        resolve(parsed(section), shape())


def test_entries_that_mean_nothing_are_told(caplog):
    from vllm.logger import init_logger

    logger = init_logger("vllm.vllm_gaudi.models.beam.quant_modules")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.WARNING):
            resolve(parsed(quantization_config([*IGNORE, "re:.*visual", f"{LAYER}.self_atn.q_proj"])), shape())
    finally:
        logger.removeHandler(caplog.handler)
    (line,) = {r.getMessage() for r in caplog.records if "is meant by" in r.getMessage()}
    assert line.endswith(f"no matrix of Beam is meant by 2 entries: re:.*visual, {LAYER}.self_atn.q_proj")


def test_published_model_is_resolved_with_every_expert_listed():
    """37,632 entries, as a tool that writes plain names would."""
    config = BeamConfig(**copy.deepcopy(PUBLISHED))
    names = [name for module in modules(config) for name in module.matrices if ".experts." in name]
    assert len(names) == 37_632
    quant = parsed(quantization_config([*IGNORE, *names]))
    resolve(quant, config)
    assert sum(name.endswith(".experts.0.gate_proj") for name in quant.ignore) == 49
    assert not any("self_attn" in name for name in quant.ignore)


def change(path: str, value) -> dict:
    """The published section with one entry replaced, `DROP` removes it."""
    section = quantization_config(list(IGNORE))
    at = section
    *parents, last = path.split(".")
    for parent in parents:
        at = at[parent]
    at.pop(last, None) if value == "DROP" else at.__setitem__(last, value)
    return section


GROUP = "config_groups.group_0"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ([], "must be an object, found"),
        ("fp8", "must be an object, found 'fp8'"),
        (change("quant_method", "DROP"), "must name its quant_method"),
        (change("kv_cache_scheme", {"num_bits": 8, "type": "float"}), r"kv_cache_scheme is .*cache is BF16, set it to"),
        (change("transform_config", {"config_groups": {}}), "transform_config is .*not rotated"),
        (change("sparsity_config", {"format": "sparse-24-bitmask"}), "sparsity_config is .*are dense"),
        (change("format", "pack-quantized"), "format is 'pack-quantized', Beam is served from float-quantized"),
        (change("ignore", "lm_head"), "ignore must be a list of names, found 'lm_head'"),
        (change("ignore", [None]), r"ignore must be a list of names, found \[None\]"),
        (change("ignore", ["re:*gate"]), r"ignore: 're:\*gate' is no regular expression \(nothing to repeat"),
        (change("config_groups", {}), r"config_groups is \{\}: nothing is quantised; set the section to null"),
        (change("config_groups", None), "config_groups is None"),
        (change("config_groups.group_0", []), r"group_0 must be a group of targets, found \[\]"),
        (change(f"{GROUP}.targets", []), "targets must be a list of names"),
        (change(f"{GROUP}.targets", "Linear"), "targets must be a list of names, found 'Linear'"),
        (change(f"{GROUP}.targets", ["BeamAttention"]), "'BeamAttention' is no kind of module Beam quantises"),
        (change(f"{GROUP}.targets", ["re:("]), r"targets: 're:\(' is no regular expression"),
        (change(f"{GROUP}.weights", None), "weights is None; Beam has num_bits 8, type float"),
        (change(f"{GROUP}.weights.num_bits", 4), "weights.num_bits is 4"),
        (change(f"{GROUP}.weights.num_bits", "8"), "weights.num_bits is '8'"),
        (change(f"{GROUP}.weights.num_bits", True), "weights.num_bits is True"),
        (change(f"{GROUP}.weights.type", "DROP"), "weights.type is 'int'"),
        (change(f"{GROUP}.weights.strategy", "tensor"), "weights.strategy is 'tensor'; Beam has .*strategy channel"),
        (change(f"{GROUP}.weights.strategy", "DROP"), "weights.strategy is None"),
        (change(f"{GROUP}.weights.symmetric", False), "weights.symmetric is False"),
        (change(f"{GROUP}.input_activations", None), "input_activations is None; Beam has .*dynamic True"),
        (change(f"{GROUP}.input_activations.dynamic", False), "input_activations.dynamic is False"),
        (change(f"{GROUP}.input_activations.dynamic", "local"), "input_activations.dynamic is 'local'"),
        (change(f"{GROUP}.input_activations.dynamic", float("nan")), "input_activations.dynamic is nan"),
        (change(f"{GROUP}.input_activations.strategy", "tensor"), "input_activations.strategy is 'tensor'"),
        (change(f"{GROUP}.output_activations", {"num_bits": 8}), "output_activations: Beam's outputs"),
        (change(f"{GROUP}.format", "mxfp8"), "group_0.format is 'mxfp8'"),
    ],
)
def test_other_sections_are_refused_by_name(section, message):
    with pytest.raises(ValueError, match=rf"config.json: quantization_config.*{message}"):
        BeamConfig(**copy.deepcopy(PUBLISHED), quantization_config=section)


def test_sections_as_tools_write_them_are_accepted():
    for path, value in (("ignore", None), ("ignore", []), ("kv_cache_scheme", None), ("format", "naive-quantized"),
                        ("sparsity_config", {}), ("sparsity_config", {"format": "dense"}), ("version", "0.17.0"),
                        (f"{GROUP}.weights.symmetric", "DROP"), (f"{GROUP}.weights.observer_kwargs", {}),
                        (f"{GROUP}.format", "float-quantized"), (f"{GROUP}.weights.observer", "minmax")):  # fmt: skip
        section = change(path, value)
        check_section(section)
        parsed(section)  # vLLM reads it too: a list of null it would not
        assert isinstance(section["ignore"], list)


def table() -> Inventory:
    return Inventory(expected_tensors(shape(), lambda module: not module.startswith(EXPERTS)))


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        (
            f"{EXPERTS}.5.up_proj.weight_scale",
            torch.float32,
            "on the ignore list .* or no target.*take it off",
        ),
        (f"{EXPERTS}.5.up_proj.weight", fp8.E4M3, "not quantised by .*take it off the ignore list or make it a target"),
        (
            "model.layers.3.mlp.experts.5.up_proj.weight",
            torch.bfloat16,
            "put every expert of model.layers.3, as BF16, on its ignore list",
        ),
        ("model.layers.3.self_attn.o_proj.weight", torch.bfloat16, "put the module on its ignore list"),
        ("model.layers.3.self_attn.o_proj.input_scale", torch.float32, "belongs to another quantisation scheme"),
        ("model.layers.3.self_attn.k_scale", torch.bfloat16, "belongs to another quantisation scheme"),
        ("model.layers.3.self_attn.o_proj.weight_packed", torch.int32, "belongs to another quantisation scheme"),
    ],
)
def test_tensors_that_contradict_the_section_are_refused_with_what_to_do(name, dtype, message):
    inventory = table()
    expected = inventory.expected.get(name)
    tensor = torch.empty(expected.shape if expected else (1,), dtype=dtype, device="meta")
    with pytest.raises(BeamCheckpointError, match=rf"^{name}: .*{message}"):
        inventory.take(name, tensor)


def rewrite(source, target, ignore: list[str], widen) -> None:
    """A copy of an FP8 checkpoint with `ignore`, in which modules for which `widen(name)` are BF16 without scales."""
    shutil.copytree(source, target)
    index = json.loads((target / "model.safetensors.index.json").read_text())
    for shard in target.glob("*.safetensors"):
        tensors = load_file(shard)
        for name in [n for n in tensors if widen(n.removesuffix("_scale").removesuffix(".weight"))]:
            value = tensors.pop(name)
            if name.endswith("_scale"):
                index["weight_map"].pop(name)
            else:
                tensors[name] = value.float().to(torch.bfloat16)
        save_file(tensors, shard, metadata={"format": "pt"})
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    path = target / "config.json"
    section = quantization_config([*IGNORE, *ignore])
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": section}))


def test_pattern_that_ignores_the_attention_gate_reaches_it(checkpoint, tmp_path):
    """vLLM renames plain entries of the ignore list, not regular expressions."""
    source = checkpoint(SHAPE, 17, fp8=True)
    rewrite(source, tmp_path / "gate", [r"re:.*\.self_attn\.gate_proj$"], lambda n: n.endswith("self_attn.gate_proj"))
    attention = Harness(tmp_path / "gate").model.model.layers[0].self_attn
    assert attention.output_gate_proj.weight.dtype == torch.bfloat16
    assert attention.o_proj.weight.dtype == fp8.E4M3


def test_experts_of_one_layer_may_be_bf16_and_a_single_expert_not(checkpoint, tmp_path):
    source = checkpoint(SHAPE, 17, fp8=True)
    rewrite(source, tmp_path / "layer", [EXPERTS], lambda name: name.startswith(f"{EXPERTS}."))
    layers = Harness(tmp_path / "layer").model.model.layers
    kinds = [layers[i].mlp.experts.routed_experts.w13_weight.dtype for i in (5, 6)]
    assert kinds == [fp8.E4M3, torch.bfloat16]
    one = [f"{EXPERTS}.5.{name}_proj" for name in ("gate", "up", "down")]
    rewrite(source, tmp_path / "one", one, lambda name: name in one)
    with pytest.raises(ValueError, match=rf"ignores 3 of the 48 matrices of {EXPERTS} \(experts 5;"):
        Harness(tmp_path / "one")
