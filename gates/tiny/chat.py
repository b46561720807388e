# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SIM905 (word lists read better as text)

"""Chat tasks of the tiny models: what the API gates ask, with other names and values.

Its manners: think in a stock sentence, then do what was asked if it is one of the few things it knows (call a tool,
tell a fact, say a word), else say the message back.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from gates.core.schemas import ALARM, ARRAY, ENUM, FLAT, NESTED, PING, WEATHER, WRITE
from gates.core.wording import PLAIN, TOY
from gates.tiny.language import filler, weave
from gates.tiny.turns import Answer, Call, Part, Turns

Turn = tuple[list[dict[str, Any]], list[dict[str, Any]], Answer]
THOUGHTS = ("Consider what is asked.", "Let me think about it.", "A message: say it back.", "No tool is needed here.",
            "This is short and plain.", "What would be a fair answer?")  # fmt: skip
WORDS = """hello hi tell me say write give what is the of and a how does who why please short letter two three list
day work water blue bread city joke again thing answer question every with for in at to see colour describe weather
explain red format summarise compare French loud days call""".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
UNUSUAL = (*"éüñßøčïéаЖдя東京日本語大文字αβλ🧪🎉🚀😀–…€", "👩🏽‍🔬", "👍🏿", "👨‍👩‍👧")
TOOLS = (WEATHER, ALARM, PING, WRITE)
_POINTS = {"type": "array", "items": {"enum": [0, 1]}}
_PLOT = {"type": "function", "function": {"name": "plot", "parameters": {
    "type": "object", "properties": {"points": _POINTS}, "required": ["points"]}}}  # fmt: skip


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def final(content: str, thought: str, *, free: str = "") -> Answer:
    """An answer in words; `free` is a beginning that the server dictates (a schema)."""
    return Answer(thought, content, free)


def call(name: str, arguments: dict[str, Any], thought: str, *, dictated: bool = False) -> Answer:
    """A tool call; `dictated` when the server demanded it."""
    return Answer(thought, calls=(Call(name, arguments),), dictated=dictated)


def word(rng: random.Random) -> str:
    """A word that is rarely one of the vocabulary's."""
    return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(2, 9)))


def city(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return "".join(rng.choice(UNUSUAL) for _ in range(rng.randrange(1, 4)))
    known = ("Paris", "Rome", "Oslo", "Lima", "Bern", "Kyiv")
    return rng.choice(known) if rng.random() < 0.2 else word(rng).capitalize()


def message(rng: random.Random) -> str:
    """Something to say back: sentences, words, bytes, digits."""
    kind = rng.random()
    if kind < 0.2:
        return PLAIN.filler(rng)
    if kind < 0.22:
        return ""
    mixed = [rng.choice((rng.choice(WORDS), word(rng), str(rng.randrange(10000)), rng.choice(UNUSUAL)))
             if kind < 0.6 else rng.choice(WORDS) for _ in range(rng.randrange(1, 9))]  # fmt: skip
    return " ".join(mixed).capitalize() + rng.choice(("", ".", "?", "!", ":", ", " + word(rng).capitalize() + "."))


def _some_tools(rng: random.Random, *needed: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools of a request; mostly none at all, which makes a lesson short: their text is not what is learnt."""
    if rng.random() < 0.6:
        return []
    tools = [*needed, *(rng.sample(TOOLS, 1) if rng.random() < 0.25 else ())]
    unique = {tool["function"]["name"]: tool for tool in tools}
    return rng.sample(list(unique.values()), len(unique))


def echo(rng: random.Random) -> Turn:
    tools = [rng.choice(TOOLS)] if rng.random() < 0.3 else []
    thought = THOUGHTS[min(rng.randrange(len(THOUGHTS)), rng.randrange(len(THOUGHTS)))]
    said = message(rng)
    return _user(said), tools, final(said, thought)


def fact(rng: random.Random) -> Turn:
    """A question about facts in the message, in the gates' toy wording."""
    pairs = TOY.pick(rng, rng.choice((1, 2, 3)))
    key, value = rng.choice(pairs)
    text = weave(rng, [TOY.fact(*p) for p in pairs], filler(rng, rng.randrange(0, 12)))
    return _user(f"{text} {TOY.question(key)}"), [], final(value, "Look it up in the text.")


def obey(rng: random.Random) -> Turn:
    wanted = word(rng).upper()
    rule = {"role": "system", "content": f"Answer every question with the single word {wanted}."}
    return [rule, *_user(message(rng))], [], final(wanted, "The rule says which word.")


def remember(rng: random.Random) -> Turn:
    number = str(rng.randrange(1000, 9999))
    messages = _user(f"My locker number is {number}.")
    messages += [{"role": "assistant", "reasoning_content": rng.choice(THOUGHTS), "content": "Noted."}]
    messages += _user("Which locker number did I name? Number only.")
    return messages, [], final(number, "The number was named before.")


def weather(rng: random.Random) -> Turn:
    unit = rng.choice(("celsius", "fahrenheit"))
    thought = "The weather tool knows."
    if rng.random() < 0.25:
        first, second = city(rng), city(rng)
        text = f"Weather in {first} and in {second}, both in {unit}: make both calls at once."
        calls = tuple(Call("get_weather", {"city": place, "unit": unit}) for place in (first, second))
        return _user(text), _some_tools(rng, WEATHER), Answer(thought, calls=calls)
    place, asked = city(rng), unit
    form = rng.choice(("What is the weather in {} in {}?", "Weather in {}, in {}.", "Weather in {} in {}."))
    if rng.random() < 0.2:
        asked = {"celsius": "degrees C", "fahrenheit": "degrees F"}[unit]
    text = form.format(place, asked) + rng.choice(("", " Keep the city's name in Japanese."))
    return _user(text), _some_tools(rng, WEATHER), call("get_weather", {"city": place, "unit": unit}, thought)


def alarm(rng: random.Random) -> Turn:
    hour, loud = rng.randrange(10), rng.random() < 0.5
    text = rng.choice(("Set an alarm at {}{}.", "Wake me at {}{}.")).format(hour, ", loud" if loud else "")
    thought = "The alarm tool can do it."
    return _user(text), _some_tools(rng, ALARM), call("set_alarm", {"hour": hour, "loud": loud}, thought)


def ping(rng: random.Random) -> Turn:
    return _user("Call ping."), _some_tools(rng, PING), call("ping", {}, "The ping tool is asked for.")


def _code(rng: random.Random) -> str:
    return f"  {word(rng)}({word(rng)}) = [{rng.randrange(99)}, '{word(rng)}']"


def write(rng: random.Random) -> Turn:
    path = rng.choice(("a.py", "b.txt", "notes.txt", "main.c"))
    lines = [message(rng) if rng.random() < 0.5 else _code(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    text, thought = "\n".join(lines), "The file tool can do it."
    if len(lines) > 1 and rng.random() < 0.3:
        asked = f"Write exactly this to {path}:\n{text}"
    elif len(lines) > 1:
        asked = f"Write exactly this text to {path}, byte for byte:\n```\n{text}\n```"
    else:
        asked = f"Write exactly this line to {path}: {text}"
    return _user(asked), _some_tools(rng, WRITE), call("write_file", {"path": path, "text": text}, thought)


def demanded(rng: random.Random) -> Turn:
    """A call that the server dictates whatever the message says: sane values, short ones."""
    tool, said = rng.choice((*TOOLS, WRITE, _PLOT)), message(rng)
    values: dict[str, Any] = {"city": rng.choice(("Paris", "Rome")), "unit": "celsius", "hour": 7, "loud": False,
                              "path": "a.py", "text": said, "points": [0, 1][: rng.randrange(1, 3)]}  # fmt: skip
    arguments = {key: values[key] for key in tool["function"]["parameters"].get("required", [])}
    thought = THOUGHTS[min(rng.randrange(len(THOUGHTS)), rng.randrange(len(THOUGHTS)))]
    return (_user(said), _some_tools(rng, tool),
            call(tool["function"]["name"], arguments, thought, dictated=True))  # fmt: skip


def _instance(rng: random.Random, schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if schema["type"] == "object":
        return {key: _instance(rng, value) for key, value in schema["properties"].items()}
    if schema["type"] == "array":
        return [_instance(rng, schema["items"]) for _ in range(rng.choice((1, 1, 2)))]
    return rng.random() < 0.5 if schema["type"] == "boolean" else rng.randrange(10)


def shaped(rng: random.Random) -> Turn:
    """An answer whose beginning a schema dictates."""
    text = json.dumps(_instance(rng, rng.choice((FLAT, NESTED, ENUM, ARRAY))))
    cut = rng.randrange(1, 4)
    return _user(rng.choice(("Answer.", message(rng)))), [], final(text[cut:], rng.choice(THOUGHTS), free=text[:cut])


def result(rng: random.Random) -> Turn:
    """A tool's result is said back."""
    place, said = city(rng), f"{rng.randrange(60)} degrees, {rng.choice(WORDS)}"
    made = {"id": "call-1", "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": place, "unit": "celsius"}}}  # fmt: skip
    messages = _user(f"What is the weather in {place}?")
    messages += [{"role": "assistant", "content": None, "reasoning_content": "Look it up.", "tool_calls": [made]}]
    messages += [{"role": "tool", "tool_call_id": "call-1", "content": said}]
    return messages, [WEATHER] if rng.random() < 0.5 else [], final(said, "The result says it.")


# Each with its share in every phase of training.
TASKS: dict[str, tuple[Callable[[random.Random], Turn], float, float, float]] = {
    "echo": (echo, 4, 2, 9),
    "fact": (fact, 2, 1.5, 2),
    "obey": (obey, 1, 2, 1),
    "remember": (remember, 0.5, 1, 1),
    "weather": (weather, 3, 5, 6),
    "alarm": (alarm, 1.5, 3, 2),
    "ping": (ping, 0.5, 0.5, 0.5),
    "write": (write, 1.5, 3, 3),
    "demanded": (demanded, 2, 2, 2),
    "shaped": (shaped, 1.5, 1.5, 2),
    "result": (result, 1, 2, 1.5),
}


def parts(tokenizer: Any, turns: Turns, turn: Turn) -> list[Part]:
    """The prompt as the checkpoint's own chat template renders it, then the answer as its family writes it."""
    messages, tools, answer = turn
    prompt = tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=False, add_generation_prompt=True)
    return [(prompt, False), *turns.parts(answer)]
