# SPDX-License-Identifier: Apache-2.0
"""Cost of these parsers per streamed token against vLLM 0.33.0's, on the same outputs, in one run.

    python gates/cpu/frontend/bench_parsers.py --reference DIR [--tree DIR] [--rounds 5]

DIR of --reference holds an unpacked vLLM 0.33.0 (the folder above `vllm/`); --tree a patched tree of ours, if it is not
installed. Both run in processes of their own, in turns; the best round of each output counts, in processor time.
Printed are ratios: the times of one machine say nothing about another.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
TOKEN = 4
SIZES = {"1 KB": 1 << 10, "64 KB": 1 << 16, "1 MB": 1 << 20}
LINE = 'for row in table: total += row["amount"] * rate  # "x" \\ y <b>\n'


PROSE = "Let me weigh both options before I answer; the first is simpler, the second faster. "
ROW = '{"id": 12345, "name": "x y", "tags": ["a", "b"], "ratio": 0.25}, '


def beam_call(tool, **values):
    tags = [f'<rfl:parameter name="{key}">\n{value}\n</rfl:parameter>' for key, value in values.items()]
    return f" to={tool}<|channel|>analysis <|constrain|>xml<|message|>" + "\n".join(tags)


def muse_call(tool, **values):
    tags = "".join(f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in values.items())
    begin = f'<atem:function_calls>\n<atem:invoke name="{tool}">\n'
    return f" to={tool}<|message|>{begin}{tags}</atem:invoke>\n</atem:function_calls>"


# Opener of thinking, what follows a message, opener of the answer, end of a turn, one call.
FORMS = {
    "beam": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant",
        "<|channel|>final<|message|>",
        "<|call|>",
        beam_call,
    ),
    "muse": (" to=self<|message|>", "<|eom|><|start|>assistant", " to=user<|message|>", "<|eot|>", muse_call),
}


def outputs():
    """(format, name, text) of each output; the last shape is repeated at growing sizes."""
    for model, (thinking, following, answer, end, call) in FORMS.items():
        lead = f"{thinking}t{following}"
        yield model, "reasoning, 16 KB", f"{thinking}{PROSE * 190}{following}{answer}x"
        yield model, "content, 16 KB", lead + answer + PROSE * 190
        rows = f'{{"rows": [{ROW * 250}0]}}'
        yield model, "object argument, 16 KB", lead + call("search", filters=rows) + end
        numbers = [call("set_alarm", hour=n % 24, ratio=n / 8) for n in range(100)]
        yield model, "numbers, 100 calls", lead + following.join(numbers) + end
        small = [call("get_weather", city=f"City {n}", days=n % 9) for n in range(100)]
        yield model, "small calls, 100", lead + following.join(small) + end
        for name, size in SIZES.items():
            text = LINE * (size // len(LINE))
            yield model, f"string argument, {name}", lead + call("write_file", path="a.py", content=text) + end


class ChunkTokenizer:
    """Each distinct chunk of an output is a token; decoding is one lookup a token, as cheap as it can be."""

    def __init__(self, special, template, text):
        split = re.compile("(" + "|".join(map(re.escape, special)) + ")")
        self.chunks = []
        for part in filter(None, split.split(text)):
            self.chunks += [part] if part in special else [part[at : at + TOKEN] for at in range(0, len(part), TOKEN)]
        letters = "assistant<|>"
        self._texts = list(dict.fromkeys([*special, *self.chunks, *letters]))
        self._ids = {chunk: index for index, chunk in enumerate(self._texts)}
        self.ids = [self._ids[chunk] for chunk in self.chunks]
        self._special, self._split = special, split
        self.init_kwargs = {} if template is None else {"response_template": template}

    def get_vocab(self):
        return self._ids

    def encode(self, text, add_special_tokens=False):
        parts = filter(None, self._split.split(text))
        return [self._ids[piece] for part in parts for piece in ([part] if part in self._special else part)]

    def decode(self, ids, **options):
        return "".join(map(self._texts.__getitem__, ids))


def work(only: str, skip: str | None) -> None:
    """Time every output once per line read from stdin; answer with seconds per token and share of tokens
    that had something sent, by name."""
    from parser_turns import parser_class, recorded, request_for

    data = {"beam": recorded("beam_parse"), "muse": recorded("muse_parse")}
    listed = [item for item in outputs() if only in f"{item[0]}: {item[1]}" and (skip is None or skip not in item[1])]
    for _ in sys.stdin:
        times = {}
        for model, name, text in listed:
            template = data[model].get("templates", {}).get("T1")
            tokenizer = ChunkTokenizer(data[model]["special_tokens"], template, text)
            options = {
                "request": {"stream": True},
                "reasoning_parser": model,
                "tool_parser": model,
                "enable_auto_tools": True,
            }
            request = request_for(options, data[model]["tools"])
            prompt = tokenizer.encode("<|start|>assistant")
            pairs = [(chunk, [token]) for chunk, token in zip(tokenizer.chunks, tokenizer.ids, strict=True)]
            # The outputs themselves are no work for the collector.
            gc.collect()
            gc.freeze()
            for _ in range(5 if len(pairs) < 5000 else 1):
                parser = parser_class(options)(tokenizer, request.tools)
                sent = 0
                start = time.process_time()
                for chunk, ids in pairs:
                    sent += parser.parse_delta(chunk, ids, request, prompt, finished=False) is not None
                sent += parser.parse_delta("", [], request, prompt, finished=True) is not None
                seconds = (time.process_time() - start) / len(pairs)
                best = times.get(f"{model}: {name}", [seconds])[0]
                times[f"{model}: {name}"] = [min(seconds, best), 100 * sent / len(pairs)]
            gc.unfreeze()
        print(json.dumps(times), flush=True)


def start(tree: str | None, only: str, skip: str | None) -> subprocess.Popen:
    path = [tree] if tree else []
    path.append(os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, __file__, "--work", "--only", only, *(["--skip", skip] if skip else [])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def ask(process: subprocess.Popen) -> dict[str, list[float]]:
    process.stdin.write("go\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise SystemExit("the parsers could not be timed: see the messages above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference")
    parser.add_argument("--tree")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="time outputs with this in `FORMAT: NAME` alone")
    parser.add_argument("--skip", help="leave out outputs with this in their name from the reference")
    args = parser.parse_args()
    if args.work:
        work(args.only, args.skip)
        return
    if not args.reference:
        parser.error("--reference DIR is needed: an unpacked vLLM 0.33.0")
    ours, reference = start(args.tree, args.only, None), start(args.reference, args.only, args.skip)
    best: list[dict[str, float]] = [{}, {}]
    sent: list[dict[str, float]] = [{}, {}]
    for _ in range(args.rounds):
        for index, process in enumerate((ours, reference)):
            for name, (seconds, share) in ask(process).items():
                best[index][name] = min(seconds, best[index].get(name, seconds))
                sent[index][name] = share
    for process in (ours, reference):
        process.stdin.close()
        process.wait(60)
    print("cost per streamed token, the end of the turn included, ours / vLLM 0.33.0 (at most 0.50 is the goal),")
    print("and the tokens of a hundred that had something sent: ours, vLLM 0.33.0's")
    for name, seconds in best[0].items():
        against = f"{seconds / best[1][name]:6.2f}" if name in best[1] else "     -"
        theirs = f"{sent[1][name]:6.1f}" if name in sent[1] else "     -"
        print(f"  {name:34} {against}   {sent[0][name]:6.1f} {theirs}")
    print("growth of our cost per token from the 1 KB to the 1 MB argument (1.00 is linear)")
    for model in FORMS:
        small, large = (best[0].get(f"{model}: string argument, {size}") for size in ("1 KB", "1 MB"))
        if small and large:
            print(f"  {model:34} {large / small:6.2f}")


if __name__ == "__main__":
    main()
