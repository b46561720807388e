# SPDX-License-Identifier: Apache-2.0
"""A config class whose fields are judged by one function, however they came."""

import copy
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PretrainedConfig

from vllm_gaudi.models.config_values import FILE, OVERRIDE, ConfigError, require, said_in, shown, undeclared

BUILT = "_built"  # set once the file has been judged: what is set later comes from an override
PARTS = ("attribute_map", "sub_configs")  # of transformers' config classes, beside their methods


class JudgedConfig(PretrainedConfig):
    """Base of the config classes here. `--hf-overrides` are judged when they are set, and again before serving."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As transformers does. Raises ConfigError for names and types it fails on, too."""
        for name in config_dict:
            require(isinstance(name, str) and name != "self", f"{shown(name)} is no name of a field; remove it")
        _check_types(config_dict)
        return super().from_dict(config_dict, **kwargs)

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        vars(self)[BUILT] = True

    def to_dict(self) -> dict[str, Any]:
        """As transformers has it, without what only this object means."""
        return {name: value for name, value in super().to_dict().items() if name != BUILT}

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field. Raises ConfigError for what is part of the class, and where transformers finds a type wrong."""
        with said_in(OVERRIDE if BUILT in vars(self) else FILE):
            self._set(name, value)

    def _set(self, name: str, value: Any) -> None:
        part = name.startswith("__") or name in PARTS or callable(getattr(type(self), name, None))
        require(not part, f"{name} is no name of a field; remove it")
        try:
            super().__setattr__(name, value)
        except (TypeError, ValueError, AttributeError, StrictDataclassError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{name} cannot be {shown(value)} ({type(error).__name__})") from error

    def judge(self, beside: dict[str, Any]) -> dict[str, Any]:
        """Refuse the config as it stands.

        Args:
            beside: fields that the class does not declare.

        Returns:
            Those of `beside` that are worth keeping.

        Raises:
            ConfigError: naming the field, its value and what is possible.
        """
        raise NotImplementedError

    def update(self, config_dict: dict[str, Any]) -> None:
        """Set fields, all or none; vLLM does so with overrides. Raises ConfigError as a file with them would."""
        changed = copy.copy(self)
        for name, value in config_dict.items():
            setattr(changed, name, value)
        changed.check()
        vars(self).update(vars(changed))

    def check(self) -> None:
        """Judge what the class has accepted and others may have changed. Raises ConfigError."""
        with said_in(OVERRIDE):
            self.judge(undeclared(self))


def _check_types(fields: dict[str, Any], at: str = "") -> None:
    """Refuse a `dtype` that is no word, anywhere: transformers prints configs, and fails to print that."""
    for name, value in fields.items():
        wrong = name == "dtype" and not isinstance(value, str | dict | torch.dtype | None)
        require(not wrong, f"{at}{name} must be the name of a type, found {shown(value)}")
        if isinstance(value, dict):
            _check_types(value, f"{at}{name}.")
