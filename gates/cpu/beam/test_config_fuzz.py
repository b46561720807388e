# SPDX-License-Identifier: Apache-2.0
"""Any JSON value in any field of a config, from the file or as an override: taken, or refused by a named error."""

import copy
import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gates.checkpoints.beam_layout import quantization_config
from gates.checkpoints.beam_shapes import SHAPES
from gates.checkpoints.muse_layout import quantization_config as quark_section
from gates.checkpoints.muse_shapes import SHAPES as MUSE_SHAPES
from vllm_gaudi.models.beam.config import BeamConfig
from vllm_gaudi.models.config_values import ConfigError, shown
from vllm_gaudi.models.muse_spark.config import MuseSparkConfig, MuseSparkTextConfig
from vllm_gaudi.quantization.quark_mxfp4 import QuarkMxfp4Config

LONGEST_MESSAGE = 1200
MUSE = MUSE_SHAPES["tiny"]
# (config class, a config it takes, without what its own checks ask for)
WHOLE = {
    "beam": (BeamConfig, {**SHAPES["grid8"], "quantization_config": quantization_config(["lm_head"])}),
    "muse text": (MuseSparkTextConfig, MUSE),
    "muse": (
        MuseSparkConfig,
        {"text_config": MUSE, "vision_config": {"a": 1}, "quantization_config": quark_section(MUSE)},
    ),
}
# Fields of every config, other families' fields, and names that are parts of the class.
OTHERS = (
    "dtype", "torch_dtype", "architectures", "id2label", "label2id", "num_labels", "problem_type", "return_dict",
    "output_attentions", "chunk_size_feed_forward", "is_encoder_decoder", "transformers_version", "name_or_path",
    "attn_implementation", "_attn_implementation", "use_return_dict", "rope_scaling", "rope_theta", "model_type",
    "compression_config", "absent_fields", "temperature", "pad_token_id", "eos_token_id", "to_dict", "attribute_map",
    "use_sliding_window", "self", "__class__", "layer_types", "num_experts",
)  # fmt: skip
KEYS = ("rope_theta", "rope_type", "sliding_attention", "full_attention", "targets", "weights", "dtype", "quant_method")
EXTREMES = (
    10**400, -(10**400), 2**31, 2**63, 1e300, 1e-300, -0.0, float("nan"), float("inf"), "", "re:(", "re:a{99999999999}",
    "350", "torch.bfloat16", "auto", "sliding_attention",
)  # fmt: skip

leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(EXTREMES) | st.floats() | st.text(max_size=4)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3) | st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


def places(fields: dict, at: tuple = ()) -> list[tuple]:
    """Paths of all entries."""
    inner = [path for name, value in fields.items() if isinstance(value, dict) for path in places(value, (*at, name))]
    return [(*at, name) for name in fields] + inner


def put(fields: dict, path: tuple, value) -> None:
    """Replace the entry at `path`, unless another change has taken its parent."""
    for name in path[:-1]:
        fields = fields.get(name)
        if not isinstance(fields, dict):
            return
    fields[path[-1]] = value


def from_file(kind, base: dict, changes: list) -> None:
    """Read as transformers does, print, copy, and judge once more as the server does."""
    content = copy.deepcopy(base)
    for path, value in changes:
        put(content, path, value)
    config = kind.from_dict(json.loads(json.dumps(content)))
    config.to_json_string(use_diff=False)
    copy.deepcopy(config).check()


def by_override(kind, base: dict, changes: list) -> None:
    """Set as vLLM sets overrides: plain ones at once, objects one by one."""
    config = kind.from_dict(copy.deepcopy(base))
    overrides = {path[0]: value for path, value in changes}
    config.update({name: value for name, value in overrides.items() if not isinstance(value, dict)})
    for name, value in overrides.items():
        if isinstance(value, dict):
            setattr(config, name, value)
    config.check()


def outcomes(attempt: Callable[[list], None], paths: list[tuple], examples: int = 200) -> dict[str, int]:
    """How often `attempt` took changes at `paths` and refused them, and the longest message; raises other errors."""
    seen = {"taken": 0, "refused": 0, "longest": 0}

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(st.tuples(st.sampled_from(paths), values), min_size=1, max_size=2))
    def run(changes):
        try:
            attempt(changes)
        except ConfigError as error:
            seen["refused"] += 1
            seen["longest"] = max(seen["longest"], len(str(error)))
        else:
            seen["taken"] += 1

    run()
    return seen


@pytest.mark.parametrize("way", [from_file, by_override])
@pytest.mark.parametrize("model", WHOLE)
def test_only_named_errors_come_out(model, way):
    kind, base = WHOLE[model]
    paths = places(base) + [(name,) for name in OTHERS]
    seen = outcomes(lambda changes: way(kind, base, changes), paths)
    assert seen["taken"] > 5
    assert seen["refused"] > 20
    assert seen["longest"] < LONGEST_MESSAGE


def test_only_named_errors_come_out_of_the_quark_section():
    base = quark_section(MUSE)

    def attempt(changes):
        section = copy.deepcopy(base)
        for path, value in changes:
            put(section, path, value)
        QuarkMxfp4Config.from_config(section)

    seen = outcomes(attempt, places(base))
    assert seen["taken"] > 5
    assert seen["refused"] > 20
    assert seen["longest"] < LONGEST_MESSAGE


def test_a_bare_error_would_be_found():
    """Control: a class that trusts one field's type."""

    class Trusting(BeamConfig):
        def judge(self, beside):
            beside.pop("trusted", "").split(",")
            return super().judge(beside)

    with pytest.raises(AttributeError):
        outcomes(lambda changes: from_file(Trusting, WHOLE["beam"][1], changes), [("trusted",)])


def test_a_number_too_long_to_print_has_a_message():
    """Python refuses to print integers of more than 4300 digits; a caller may pass one."""
    assert shown(10**5000) == shown([10**5000]) == "a number too long to print"
    with pytest.raises(ConfigError, match=r"vocab_size must be at most .* too long to print"):
        BeamConfig(vocab_size=10**5000)
    with pytest.raises(ConfigError, match=r"routed_scaling_factor must be a number from .* too long to print"):
        BeamConfig(routed_scaling_factor=10**5000)
