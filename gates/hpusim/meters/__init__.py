# SPDX-License-Identifier: Apache-2.0
"""What the emulated device counts."""
