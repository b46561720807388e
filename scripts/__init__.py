# SPDX-License-Identifier: Apache-2.0
"""The patch-stack tool: from `upstream.lock` to patched trees, and on to a new upstream tag."""
