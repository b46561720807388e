# SPDX-License-Identifier: Apache-2.0
"""Logic behind the runner patches: each patch inserts a call, the code it calls lives here.

`settings` lists every switch, `gates` says which models a behaviour change applies to. Correctness fixes
(async inputs, sampling rows, logit rows, prompt logprobs) apply to every model; anything that changes how a
model is executed applies only to the models this distribution ships, unless a setting asks for it.
"""
