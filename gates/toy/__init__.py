# SPDX-License-Identifier: Apache-2.0
"""A tiny model that can: a small Beam trained here in minutes on the language of the gates' `toy` wording."""
