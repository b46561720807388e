# SPDX-License-Identifier: Apache-2.0
"""Gates, references and the emulated Gaudi. Nothing here enters a wheel."""
