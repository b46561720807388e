# SPDX-License-Identifier: Apache-2.0
"""The served path on the emulated Gaudi, quick: one lazy engine and one API server, several checks each."""

import json
import random

import pytest

from gates.hpusim import checkpoints, reference, testing
from gates.hpusim.meters import launches

pytestmark = pytest.mark.engine
LAYERS = 3
HOSTILE = {
    "HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9",
    "VLLM_API_KEY": "secret", "VLLM_PORT": "junk", "MASTER_PORT": "junk", "GLOO_SOCKET_IFNAME": "nosuch0",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PT_HPU_LAZY_MODE": "7",
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def prompts():
    source = random.Random(5)
    return [[source.randrange(8, 512) for _ in range(length)] for length in (7, 40, 129, 23)]


@pytest.fixture(scope="module")
def lazy(root, prompts):
    """Qwen3-MoE, lazy mode, asynchronous scheduling; the second batch obeys a grammar."""
    model = checkpoints.make("qwen3_moe", root, num_hidden_layers=LAYERS)
    plain = {"prompts": prompts, "sampling": {"temperature": 0, "max_tokens": 24, "ignore_eos": True}}
    choice = {"structured_outputs": {"choice": ["yes", "no"]}, "temperature": 0, "max_tokens": 8}
    return model, testing.run_engine(model, [plain, {"prompts": prompts[:2], "sampling": choice}], mode="lazy_eager")


@pytest.fixture(scope="module")
def verdicts(lazy, prompts):
    """The run's own tokens, and a control with one foreign token among them."""
    model, run = lazy
    wrong = [list(tokens) for tokens in run.tokens(0)]
    wrong[0][3] = (wrong[0][3] + 17) % 512
    return reference.judge([(model, prompts, run.tokens(0)), (model, prompts[:1], wrong[:1])])


def test_tokens_are_those_of_transformers(verdicts):
    verdict = verdicts[0]
    assert verdict.largest <= reference.NEAR_TIE, verdict
    assert verdict.agree > 0.9, verdict


def test_the_judge_sees_a_wrong_token(verdicts):
    assert verdicts[1].largest > reference.NEAR_TIE


def test_grammar_is_obeyed(lazy):
    _, run = lazy
    assert {output["choices"][0]["text"] for output in run.outputs(1)} <= {"yes", "no"}


def test_every_step_is_sorted_and_counted(lazy):
    _, run = lazy
    (summary,) = run.meters
    assert summary["missing"] == []
    assert summary["steps"]["prefill"] >= 1
    assert summary["steps"]["decode"] >= 23
    assert summary["steps"]["decode+grammar"] >= 1
    decode = summary["phases"]["decode"]
    assert decode["moe_launches"] == LAYERS * summary["steps"]["decode"]
    assert decode["moe_tensor_inputs_max"] == 3 + 2 * 8
    assert decode["mark_steps"] > 0
    assert decode["mixed"]["total"] == 0, decode["mixed"]
    assert 0 < summary["memory_peak"] < 1 << 30


def test_layers_and_loading_are_counted_apart(lazy):
    model, run = lazy
    (summary,) = run.meters
    layers = summary["layers"]["decode"]
    assert sorted(layers) == [str(index) for index in range(LAYERS)]
    assert [layer["moe_launches"] for layer in layers.values()] == [summary["steps"]["decode"]] * LAYERS
    weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    loaded = summary["phases"]["load"]["h2d"]["bytes"]
    assert 0.9 * weights < loaded < 2 * weights, (loaded, weights)
    assert "load" not in summary["steps"]


def test_an_asynchronous_decode_step_never_waits(lazy):
    _, run = lazy
    decode = run.meters[0]["phases"]["decode"]
    assert decode["syncs"]["total"] == 0, decode["syncs"]
    assert decode["d2h"]["blocking"] == 0
    assert decode["d2h"]["largest"] <= 4 * 8 * 4, "sampled ids only"


def test_launch_model_from_a_served_run(lazy):
    _, run = lazy
    small = launches.predict(run.meters[0], "decode", LAYERS)
    counted = run.meters[0]["phases"]["decode"]["launches"] / run.meters[0]["steps"]["decode"]
    assert small.launches == pytest.approx(counted)
    assert launches.predict(run.meters[0], "decode", 52).launches == pytest.approx(small.fixed + 52 * small.per_layer)


@pytest.fixture(scope="module")
def server(root):
    """Started from a shell full of left-overs, none of which may reach the server or its clients."""
    model = checkpoints.make("qwen3_moe", root, num_hidden_layers=LAYERS)
    with pytest.MonkeyPatch.context() as shell:
        for name, value in HOSTILE.items():
            shell.setenv(name, value)
        with testing.serve(model, "--enable-auto-tool-choice", "--tool-call-parser", "hermes") as running:
            yield running


MESSAGES = [{"role": "user", "content": "hello"}]


def test_models_and_metrics(server):
    assert [model.id for model in server.client.models.list()] == ["tiny"]
    assert "vllm:num_requests_running" in server.get("/metrics")


def test_stream_and_whole_answer_agree(server):
    arguments = {"model": "tiny", "messages": MESSAGES, "max_tokens": 16, "temperature": 0}
    pieces = [c.choices[0].delta.content or "" for c in server.client.chat.completions.create(stream=True, **arguments)]
    whole = server.client.chat.completions.create(**arguments).choices[0].message.content
    assert len(pieces) > 2
    assert "".join(pieces) == whole


def test_seeded_choices_repeat(server):
    def ask():
        answer = server.client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=12, n=2, seed=11, temperature=1.0
        )
        return [choice.message.content for choice in answer.choices]

    assert ask() == ask()


def test_schema_over_http(server):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    answer = server.client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=300, seed=3,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )  # fmt: skip
    if answer.choices[0].finish_reason == "stop":  # random weights may fill the budget with legal blanks
        assert list(json.loads(answer.choices[0].message.content)) == ["a"]
    else:
        assert answer.choices[0].message.content.lstrip().startswith("{")


def test_log_probabilities(server):
    answer = server.client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=4, temperature=0, logprobs=2)
    found = answer.choices[0].logprobs
    assert len(found.token_logprobs) == 4
    assert all(value <= 0 for value in found.token_logprobs)


def test_clean_exit_leaves_meters(server):
    """Last: stops the server."""
    assert server.stop() == 0
    assert sum(summary["steps"].get("decode", 0) for summary in server.meters) > 20
