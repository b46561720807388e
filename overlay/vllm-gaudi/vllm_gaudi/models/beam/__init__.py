# SPDX-License-Identifier: Apache-2.0
"""Beam-1.0: config, layers, attention, experts, model. Read in that order."""
