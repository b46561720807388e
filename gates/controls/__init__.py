# SPDX-License-Identifier: Apache-2.0
"""Known faults for the gates: a proxy that spoils a good server's answers, and a stand-in server to spoil."""
