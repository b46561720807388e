# SPDX-License-Identifier: Apache-2.0
"""Which matrices the quantisation section means, decided under the names of the checkpoint.

vLLM asks its config about fused modules, about expert 0 on behalf of a layer's
experts, and about `self_attn.gate_proj` under the name it is built by; patterns
and single experts are then missed. Here every matrix of the checkpoint is looked
up, the parts of one built module must agree, and vLLM is given the result.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm.logger import init_logger

from vllm_gaudi.models.beam.config import BeamConfig
from vllm_gaudi.models.beam.quant_section import METHOD, SECTION
from vllm_gaudi.models.config_values import ConfigError

# Only loggers below "vllm" have a handler.
logger = init_logger(f"vllm.{__name__}")
# Never quantised: built without a quantisation method.
PLAIN = ("lm_head", "model.embed_tokens")


@dataclass(frozen=True)
class Module:
    """A module as it is built: its matrices in the checkpoint, and other names that mean all of them."""

    built: tuple[str, ...]  # names vLLM asks about
    matrices: tuple[str, ...]
    aliases: tuple[str, ...] = ()


def modules(config: BeamConfig) -> Iterator[Module]:
    """Every module of the model that may be quantised."""
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}"
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        qkv = tuple(f"{attention}.{name}_proj" for name in "qkv")
        yield Module((f"{attention}.qkv_proj",), qkv, (f"{attention}.qkv_proj",))
        yield Module(
            (f"{attention}.output_gate_proj",), (f"{attention}.gate_proj",), (f"{attention}.output_gate_proj",)
        )
        yield Module((f"{attention}.o_proj",), (f"{attention}.o_proj",))
        if not config.is_sparse(layer):
            pair = tuple(f"{mlp}.{name}_proj" for name in ("gate", "up"))
            yield Module((f"{mlp}.gate_up_proj",), pair, (f"{mlp}.gate_up_proj",))
            yield Module((f"{mlp}.down_proj",), (f"{mlp}.down_proj",))
            continue
        experts = f"{mlp}.experts"
        names = tuple(f"{name}_proj" for name in ("gate", "up", "down"))
        yield Module(
            tuple(f"{where}.0.{name}" for where in (experts, f"{experts}.routed_experts") for name in names),
            tuple(f"{experts}.{expert}.{name}" for expert in range(config.num_experts) for name in names),
            (experts,),
        )


@dataclass
class Entries:
    """Names and `re:` patterns of one list; remembers which of them meant a module."""

    entries: Iterable[str]
    names: set[str] = field(init=False)
    patterns: dict[str, re.Pattern] = field(init=False)
    used: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.names = {entry for entry in self.entries if not entry.startswith("re:")}
        self.patterns = {e: re.compile(e.removeprefix("re:")) for e in self.entries if e.startswith("re:")}

    def mean(self, name: str) -> bool:
        """Whether an entry means the module called `name`."""
        found = name in self.names
        if found:
            self.used.add(name)
        for entry, pattern in self.patterns.items():
            if (entry not in self.used or not found) and pattern.match(name):
                self.used.add(entry)
                found = True
        return found

    def unused(self) -> list[str]:
        """Entries that meant nothing so far, in order."""
        return [entry for entry in dict.fromkeys(self.entries) if entry not in self.used]


def _packed(name: str) -> str | None:
    """The packed tensor's module an expert matrix is stored in, where experts are packed."""
    head, found, tail = name.partition(".mlp.experts.")
    if not found:
        return None
    return f"{head}.mlp.experts.{'down' if tail.endswith('down_proj') else 'gate_up'}_proj"


def _mean(entries: Entries, module: Module, what: str) -> bool:
    """Whether `entries` mean `module`. Raises ConfigError when they mean only some of its matrices."""
    whole = any([entries.mean(alias) for alias in module.aliases])
    chosen = []
    for name in module.matrices:
        packed = _packed(name)
        if any([entries.mean(name), packed is not None and entries.mean(packed)]):
            chosen.append(name)
    # A pattern that meets the built name by its beginning and one matrix means that matrix.
    if len(chosen) in (0, len(module.matrices)) or not entries.names.isdisjoint(module.aliases):
        return whole or bool(chosen)
    others = sorted(set(module.matrices) - set(chosen))
    head, is_expert, _ = module.matrices[0].partition(".mlp.experts.")
    if is_expert:
        layer = f"{head}.mlp.experts"
        numbers = sorted({int(name.removeprefix(f"{layer}.").split(".")[0]) for name in chosen})
        listed = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
        raise ConfigError(
            f"{SECTION} {what} {len(chosen)} of the {len(module.matrices)} matrices of {layer} (experts {listed}; "
            f"first {chosen[0]}), but the experts of a layer run in one kernel and share one format. Name all of them "
            f"(re:{re.escape(layer)}\\..*) or none, and store them alike"
        )
    raise ConfigError(
        f"{SECTION} {what} {', '.join(chosen)} but not {', '.join(others)}, which are one matrix on the device. "
        "Name all of them or none, and store them alike"
    )


def resolve(quant_config: Any, config: BeamConfig) -> None:
    """Replace the ignore list and the targets of a compressed-tensors config by what they mean for Beam, in place.

    Does nothing without a compressed-tensors config. Idempotent. An ignore entry that means no module is logged.

    Raises:
        ConfigError: an entry means a part of a module that is built as one, or a target means what is never quantised.
    """
    if quant_config is None or quant_config.get_name() != METHOD:
        return
    section = quant_config.config
    targets = [target for group in section["config_groups"].values() for target in group["targets"]]
    everything = "Linear" in targets
    ignore, target = Entries(section["ignore"]), Entries([t for t in targets if t != "Linear"])
    plain = []
    for module in modules(config):
        if _mean(ignore, module, "ignores") or not (everything or _mean(target, module, "targets")):
            plain += module.built
    for name in PLAIN:
        if target.mean(name) and not ignore.mean(name):
            raise ConfigError(f"{SECTION} targets {name}, which Beam keeps in BF16; put it on the ignore list")
    routers = [f"model.layers.{i}.mlp.gate" for i in range(config.num_hidden_layers) if config.is_sparse(i)]
    for name in (*PLAIN, *routers):
        ignore.mean(name)
    if unused := ignore.unused():
        listed = ", ".join(unused[:8]) + (", ..." if len(unused) > 8 else "")
        logger.warning_once(
            "config.json: %s.ignore: no matrix of Beam is meant by %d entries: %s", SECTION, len(unused), listed
        )
    scheme = next(iter(quant_config.target_scheme_map.values()))
    quant_config.target_scheme_map = {"Linear": scheme}
    quant_config.ignore = [*PLAIN, *plain]
