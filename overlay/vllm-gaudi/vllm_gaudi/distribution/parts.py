# SPDX-License-Identifier: Apache-2.0
"""The parts of the distribution, in the order they are registered.

A part is `"module:function"`: a function without arguments, safe to call twice, cheap and without heavy imports, as it
runs in the API server, the engine core and every worker.
"""

PARTS: tuple[str, ...] = (
    "vllm_gaudi.models.beam.registration:register",
    "vllm_gaudi.loader.registration:register",
    "vllm_gaudi.quantization.quark_mxfp4:register",
    "vllm_gaudi.models.muse_spark.registration:register",
)
