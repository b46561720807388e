# SPDX-License-Identifier: Apache-2.0
"""What reaches the chat template: reasoning effort, earlier turns, the template's identity."""
