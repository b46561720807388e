# SPDX-License-Identifier: Apache-2.0
"""Load format `beam` (also `frontier`): plan from the safetensors headers, then read only what this rank keeps."""
