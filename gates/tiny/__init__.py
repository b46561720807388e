# SPDX-License-Identifier: Apache-2.0
"""A tiny Beam that can copy, look up and call tools, so that gates mean something without a Gaudi."""
