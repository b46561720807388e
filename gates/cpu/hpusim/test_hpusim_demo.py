# SPDX-License-Identifier: Apache-2.0
"""The demo: what it says when the machine cannot, its checks, its table. The engine test has the served path."""

import collections
import json
import shutil
import socket
from types import SimpleNamespace

import pytest

from gates.hpusim import checkpoints, demo, demo_report, testing, tokenizer, upstream_tests


def test_a_busy_port_is_named_with_the_way_out(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert demo.main(["--folder", str(tmp_path), "--port", str(port)]) == 3
    said = capsys.readouterr().err
    assert f"port {port} of 127.0.0.1 cannot be used" in said
    assert "demo --port 0" in said
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


def test_little_memory_and_disk_are_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "memory_available", lambda: 100 << 20)
    assert demo.main(["--folder", str(tmp_path), "--port", "0"]) == 3
    assert "100 MiB of memory are available, the server needs about 3072" in capsys.readouterr().err
    monkeypatch.setattr(demo, "memory_available", lambda: None)
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(1, 1, 5 << 20))
    assert demo.main(["--folder", str(tmp_path), "--port", "0"]) == 3
    assert "5 MiB are free" in capsys.readouterr().err


def test_an_interrupt_is_no_traceback(tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "make", interrupted)
    assert demo.main(["--folder", str(tmp_path), "--port", "0"]) == 130
    assert "run it again at any time" in capsys.readouterr().err


def test_a_server_that_is_still_starting_is_not_waited_for(tmp_path, monkeypatch):
    """Its start ignores the interrupt: ending the demo then must not take a minute."""
    deaf = tmp_path / "python"
    deaf.write_text("#!/bin/sh\ntrap '' INT\nsleep 600 &\nwait\n")
    deaf.chmod(0o755)
    monkeypatch.setattr(testing.sys, "executable", str(deaf))
    asked = []
    end = testing._end
    monkeypatch.setattr(testing, "_end", lambda process, patience: asked.append(patience) or end(process, patience / 6))
    with pytest.raises(AssertionError, match="server not ready after"), testing.serve(tmp_path, timeout=0.1):
        pass
    assert asked == [3]


def answering(text=None, calls=None):
    message = SimpleNamespace(content=text, tool_calls=calls)
    create = lambda **_: SimpleNamespace(choices=[SimpleNamespace(message=message)])  # noqa: E731
    return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


@pytest.mark.parametrize(
    ("text", "ok"),
    [('{"sure": true, "mood": "calm"}', True), ('{"sure": 1, "mood": "calm"}', False), ("words", False), ("", False)],
)
def test_a_wrong_structured_answer_fails(text, ok):
    assert demo.structured_answer(answering(text))["ok"] is ok


@pytest.mark.parametrize(("arguments", "ok"), [('{"city": "Rome"}', True), ('{"city": "Oslo"}', False), ("{", False)])
def test_a_wrong_tool_call_fails(arguments, ok):
    call = SimpleNamespace(function=SimpleNamespace(name="weather", arguments=arguments))
    assert demo.tool_call(answering(calls=[call]))["ok"] is ok
    assert demo.tool_call(answering())["ok"] is False


def test_the_table_shows_failures_meters_and_seconds():
    results = [{"what": "streamed chat", "ok": False, "shown": "nothing"}]
    text = demo_report.report(results, [], [("wheels", 41.0), ("server start", 20.5)], "qwen3_moe")
    assert "FAIL streamed chat" in text
    assert "no meter summary" in text
    assert "61.5" in text


def test_earlier_phases_are_read(capsys):
    assert demo._phase("wheels=41.5") == ("wheels", 41.5)
    with pytest.raises(SystemExit):
        demo.main(["--before", "wheels"])
    assert "expected NAME=SECONDS" in capsys.readouterr().err


def test_tokenizer_covers_every_byte_and_finds_blanks(tmp_path):
    built = tokenizer.build()
    text = "Grüße, 世界 🙂\n\t{}"
    assert built.decode(built.encode(text).ids) == text
    assert built.get_vocab_size() == tokenizer.VOCABULARY
    assert {built.decode([int(i)]) for i in tokenizer.blank_ids()} >= {" ", "\n", "\t", "\r"}
    tokenizer.save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"]


def test_unknown_architecture_is_refused(tmp_path):
    with pytest.raises(ValueError, match="unknown architecture 'gpt9'; known: llama"):
        checkpoints.make("gpt9", tmp_path)


def test_upstream_failures_need_an_explanation(tmp_path):
    report = tmp_path / "report.xml"
    file = 'file="tests/unit_tests/worker/test_x.py"'
    report.write_text(
        f'<testsuite><testcase {file} name="a"/>'
        f'<testcase {file} name="b"><failure message="offline mode is enabled"/></testcase>'
        f'<testcase {file} name="c"><failure message="AssertionError: 1 == 2"/></testcase>'
        f'<testcase {file} name="d"><skipped/></testcase></testsuite>'
    )
    (result,) = upstream_tests.read_report(report).values()
    assert result.name == "worker/test_x.py"
    assert result.counts == {"passed": 1, "failed": 2, "skipped": 1}
    assert sum(result.explained.values()) == 1
    assert result.unexplained == [("c", "AssertionError: 1 == 2")]
    assert "UNEXPLAINED" in upstream_tests.render([result], "x")
    (tmp_path / upstream_tests.FOLDER).mkdir(parents=True)
    twice = ["--junit", str(report)] * 2
    assert upstream_tests.main([str(tmp_path), *twice, "--write", str(tmp_path / "list.md")]) == 1
    assert "| worker/test_x.py | 2 | 4 | 2 |" in (tmp_path / "list.md").read_text(), "parts of a file add up"
    assert upstream_tests.main([str(tmp_path / "nowhere")]) == 2
