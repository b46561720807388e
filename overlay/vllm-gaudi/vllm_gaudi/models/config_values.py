# SPDX-License-Identifier: Apache-2.0
"""Checks of config values that hold for every model here: any JSON value is taken or refused by name.

A config reaches the server by its file or by `--hf-overrides`; the same checks judge both.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import GenerationConfig, PretrainedConfig

# Larger ones are a slip, and would be built as lists or tensors before anything else fails.
LARGEST, MOST_LAYERS = 2**31 - 1, 1024
LONGEST = 200  # characters of a value in a message
FILE, OVERRIDE = "config.json", "--hf-overrides"
DTYPES = ("bfloat16", "float16", "float32")
# Fields that carry no arithmetic.
HARMLESS = {
    "_commit_hash",
    "_name_or_path",
    "auto_map",
    "compression_config",
    "dtype",
    "model_type",
    "name_or_path",
    "quantization_config",
    "router_aux_loss_coef",
    "tokenizer_class",
    "torch_dtype",
}
# Of classifiers and of transformers' own forward pass: not kept, whatever they hold.
DROPPED = {
    "attn_implementation",
    "experts_implementation",
    "id2label",
    "label2id",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
}
# What transformers gives every config, and only one value of which is a decoder's.
DECODER = {"is_encoder_decoder": False, "chunk_size_feed_forward": 0}
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


class ConfigError(ValueError):
    """A config that must not be served: where it is said, which field, its value and what is possible."""

    def __init__(self, message: str, where: str = FILE) -> None:
        super().__init__(f"{where}: {message}")
        self.message = message


@contextmanager
def said_in(where: str) -> Iterator[None]:
    """Errors of the body name `where` as the place of the field."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.message, where) from None


def shown(value: Any) -> str:
    """`value` for a message, cut to a readable length."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return "a number too long to print"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def require(condition: Any, message: str) -> None:
    """Raise ConfigError with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number; JSON may hold NaN, infinities, truth values and integers beyond a float."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def check_whole(config: PretrainedConfig, names: Iterable[str]) -> None:
    """Refuse fields that are no positive whole numbers, or too large. Raises ConfigError."""
    for name in names:
        value, most = getattr(config, name), MOST_LAYERS if name == "num_hidden_layers" else LARGEST
        require(type(value) is int and value > 0, f"{name} must be a positive whole number, found {shown(value)}")
        require(value <= most, f"{name} must be at most {most}, found {shown(value)}")


def check_range(name: str, value: Any, limits: tuple[float, float], optional: bool = False) -> None:
    """Refuse a value that is no number within `limits`, both allowed, nor null if `optional`. Raises ConfigError."""
    low, high = limits
    require(
        (value is None and optional) or (is_number(value) and low <= value <= high),
        f"{name} must be a number from {low:g} to {high:g}{' or null' * optional}, found {shown(value)}",
    )


def check_fixed(config: PretrainedConfig, fixed: dict[str, Any], model: str) -> None:
    """Refuse fields of which `model` has one value only. Raises ConfigError."""
    for name, value in fixed.items():
        found = getattr(config, name)
        require(found == value, f"{name} is {shown(found)}, {model} has {value!r}")


def check_token_ids(config: PretrainedConfig, beside: dict[str, Any], names: Iterable[str] = TOKEN_IDS) -> None:
    """Refuse what is neither null nor a token id nor, for several stop tokens, a list of them. Raises ConfigError."""
    for name in names:
        value = getattr(config, name, beside.get(name))
        ids = value if name == "eos_token_id" and isinstance(value, list | tuple) else [value]
        good = value is None or all(type(entry) is int and 0 <= entry <= LARGEST for entry in ids)
        good = good or (name == "pad_token_id" and type(value) is int and value == -1)  # a custom for "none"
        require(good, f"{name} must be a token id{' or a list of them' * (name[0] == 'e')}, found {shown(value)}")


def check_layer_lists(config: PretrainedConfig, kinds: dict[str, set[str]]) -> None:
    """Refuse lists that do not hold one of their `kinds` for every layer. Raises ConfigError."""
    for name, known in kinds.items():
        values = check_length(config, name)
        unknown = sorted({v if isinstance(v, str) else shown(v) for v in values} - known)
        require(not unknown, f"{name} holds {shown(unknown)}, known are {sorted(known)}")


def check_length(config: PretrainedConfig, name: str) -> list:
    """The field as a list with one entry a layer. Raises ConfigError if it is none."""
    values, layers = getattr(config, name), config.num_hidden_layers
    require(isinstance(values, list | tuple), f"{name} must be a list with one entry a layer, found {shown(values)}")
    require(len(values) == layers, f"{name} has {len(values)} entries for {layers} layers")
    return values


def check_dtype(model: str, *values: Any) -> str | None:
    """The float type that all given `values` name (None: not given). Raises ConfigError if they name none, or several.

    transformers would fail with a bare attribute, and of two it would keep one.
    """
    names = {str(value).removeprefix("torch.") for value in values if value is not None} - {"auto"}
    for value in values:
        known = value is None or str(value).removeprefix("torch.") in (*DTYPES, "auto")
        require(known, f"dtype is {shown(value)}, {model} is published in 'bfloat16'")
    require(len(names) < 2, f"dtype and torch_dtype name {' and '.join(sorted(names))}; remove torch_dtype")
    return next(iter(names), None)


def check_common(config: PretrainedConfig, beside: dict[str, Any], model: str) -> None:
    """Refuse what contradicts `model` in the fields that every config has.

    `beside` are fields that the class does not declare. Raises ConfigError.
    """
    right = type(config).model_type
    for kind in (beside.get("model_type"), config.model_type):  # an override sets it on the object
        require(kind in (None, right), f"model_type is {shown(kind)}, {model} has {right!r}")
    check_fixed(config, DECODER, model)
    check_dtype(model, config.dtype, beside.get("torch_dtype"))
    check_token_ids(config, beside)
    for name in ("quantization_config", "compression_config"):
        section = beside.get(name)
        require(section is None or isinstance(section, dict), f"{name} must be an object, found {shown(section)}")


def check_architecture(config: PretrainedConfig, architecture: str, model: str) -> None:
    """Refuse another architecture than `architecture`, and set it where none is named. Raises ConfigError."""
    if config.architectures is None or config.architectures == []:
        config.architectures = [architecture]
    found = config.architectures
    require(found == [architecture], f"architectures is {shown(found)}, {model} has {[architecture]}")


def drop_idle(config: PretrainedConfig, fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` without those nothing reads, which are set to what transformers takes when they are absent."""
    for name in DROPPED & config.__dataclass_fields__.keys():
        setattr(config, name, config.__dataclass_fields__[name].default)
    return {name: value for name, value in fields.items() if name not in DROPPED}


def refuse_unknown(fields: dict[str, Any], synonyms: dict[str, Any], model: str) -> dict[str, Any]:
    """Fields without the `synonyms` that agree with `model` and the unknown ones that are off.

    Raises:
        ConfigError: a field this model does not know is set, or a synonym contradicts the architecture.
    """
    kept = {}
    # Sampling defaults in config.json are dropped by transformers; generation_config.json counts.
    sampling = {*GenerationConfig._get_default_generation_params(), "min_p", "max_new_tokens"}
    for name, value in fields.items():
        if name in synonyms:
            agrees = value is None or value == synonyms[name]
            require(agrees, f"{name} is {shown(value)}, {model} has {synonyms[name]!r}")
        elif name in HARMLESS or name in sampling:
            kept[name] = value
        elif value not in (None, False) and value != [] and value != {}:
            advice = "Set it to null if it has no effect on inference."
            if name.startswith("rope"):
                advice = "RoPE is what rope_parameters says."
            raise ConfigError(
                f"unknown field {name} = {shown(value)}; it may change the model, so it is refused. {advice}"
            )
    return kept


def drop_same_theta(fields: dict[str, Any], theta: float) -> dict[str, Any]:
    """`fields` without a `rope_theta` that says again what `rope_parameters` does, as transformers may write it."""
    given = fields.get("rope_theta")
    same = is_number(given) and given == theta
    return {name: value for name, value in fields.items() if not (same and name == "rope_theta")}


def whole_rotation(rope: dict[str, Any]) -> set[str]:
    """The entry of `rope` that says that all of a head is rotated, if it says so: transformers may write it."""
    factor = rope.get("partial_rotary_factor")
    return {"partial_rotary_factor"} if factor is None or (is_number(factor) and factor == 1) else set()


def undeclared(config: PretrainedConfig) -> dict[str, Any]:
    """What was set on `config` beside the fields of its class, as the file or an override may do."""
    own = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    return {name: value for name, value in own.items() if name not in config.__dataclass_fields__}
