# SPDX-License-Identifier: Apache-2.0
"""Quantised twins of a tiny checkpoint: compressed-tensors FP8 (W8A8, per channel and token) and MXFP4 GPT-OSS experts.

Each writes the quantised checkpoint and, in its folder `dequantised`, the same weights as bf16 for the reference.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NOT_FP8 = ("lm_head", "embed_tokens", "mlp.gate.", "router", "norm")
FP8_CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "float",
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
        }
    },
    "ignore": ["lm_head", "re:.*mlp.gate$"],
}
MXFP4_CONFIG: dict[str, Any] = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def _write(source: Path, name: str, tensors: dict[str, Any], plain: dict[str, Any], config: dict[str, Any]) -> Path:
    from safetensors.torch import save_file

    folder = source.with_name(f"{source.name}-{name}")
    shutil.rmtree(folder, ignore_errors=True)
    for target, content in ((folder, tensors), (folder / "dequantised", plain)):
        target.mkdir()
        for path in source.glob("*.json"):
            if "safetensors" not in path.name:
                shutil.copy(path, target)
        contiguous = {key: value.contiguous() for key, value in content.items()}
        save_file(contiguous, target / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}, indent=1))
    (folder / "complete").touch()
    return folder


def _tensors(source: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(source / "model.safetensors")


def fp8(source: Path) -> Path:
    """compressed-tensors FP8 of a dense or MoE checkpoint: linear weights E4M3 with one scale a row."""
    import torch

    done = source.with_name(f"{source.name}-fp8")
    if (done / "complete").exists():
        return done
    tensors, plain = {}, {}
    for name, value in _tensors(source).items():
        if value.dim() != 2 or any(part in name for part in _NOT_FP8):
            tensors[name] = plain[name] = value
            continue
        scale = value.float().abs().amax(-1, keepdim=True) / 448.0
        codes = (value.float() / scale).to(torch.float8_e4m3fn)
        tensors[name] = codes
        tensors[re.sub(r"weight$", "weight_scale", name)] = scale
        plain[name] = codes.float() * scale
    return _write(source, "fp8", tensors, plain, FP8_CONFIG)


def mxfp4(source: Path) -> Path:
    """MXFP4 of a GPT-OSS checkpoint's experts: two E2M1 codes a byte, one E8M0 scale for 32 values along the input."""
    done = source.with_name(f"{source.name}-mxfp4")
    if (done / "complete").exists():
        return done
    tensors, plain = {}, {}
    for name, value in _tensors(source).items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = plain[name] = value
            continue
        blocks, scales, back = _mxfp4(value.float().transpose(1, 2))
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
        plain[name] = back.transpose(1, 2)
    return _write(source, "mxfp4", tensors, plain, MXFP4_CONFIG)


def _mxfp4(value: Any) -> tuple[Any, Any, Any]:
    """[E, rows, columns] -> codes [E, rows, columns / 32, 16], scales [E, rows, columns / 32], the values they mean."""
    import torch

    groups = value.unflatten(-1, (-1, 32))
    exponent = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True).clamp(min=2.0**-100))) - 2
    scaled = groups / torch.exp2(exponent)
    grid = torch.tensor(E2M1)
    code = (scaled.abs().unsqueeze(-1) - grid).abs().argmin(-1)
    signed = grid[code] * scaled.sign()
    nibble = code + 8 * (scaled < 0)
    packed = (nibble[..., 0::2] | (nibble[..., 1::2] << 4)).to(torch.uint8)
    scales = (exponent.squeeze(-1) + 127).to(torch.uint8)
    return packed, scales, (signed * torch.exp2(exponent)).flatten(-2)
