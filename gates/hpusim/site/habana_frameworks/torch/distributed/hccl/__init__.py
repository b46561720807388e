# SPDX-License-Identifier: Apache-2.0
"""The hccl backend is registered when the device loads."""
