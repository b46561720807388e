# SPDX-License-Identifier: Apache-2.0
"""Ranks in processes of their own, forked from one that has imported the loader already: a start costs no imports."""

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
# Before the first process is started: the server of a pytest run is one for all its tests.
PROCESSES.set_forkserver_preload(["vllm_gaudi.loader.model_loader", "vllm_gaudi.loader.node"])
