"""A reward that the YAML names by its file or module and its function."""

import asyncio
import logging
import sys

import pytest

from rlhf_dialog import UserError
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import RewardError, Scorer, build_reward
from rlhf_dialog.rewards.base import walk
from rlhf_dialog.rewards.scoring import RewardTimeout
from rlhf_dialog.runs.reward_code import code_of

POLITE = "def politeness(dialogues, word='please'):\n    return [float(word in d.response) for d in dialogues]\n"
AS_TRL = (
    "def exact(prompts, completions, solution, bonus=0.0):\n"
    "    return [bonus + (text == wanted) for text, wanted in zip(completions, solution)]\n"
    "def exact_of_all(completions, **columns):\n"
    "    return exact(None, completions, columns['solution'])\n"
)
SAID = [Dialogue(["Tea ?"], text, meta={"solution": "tea please"}) for text in ("tea please", "thanks")]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file of the working directory."""
    monkeypatch.chdir(tmp_path)

    def write_file(text, name="my_rewards.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def scores(node, **keys):
    return Scorer(build_reward(node["id"], node.get("args", {})), **keys).score(SAID)


def composite(*parts):
    return {"id": "CompositeReward", "args": {"parts": list(parts)}}


def test_a_function_of_a_file_with_its_keyword_arguments_in_both_signatures(write):
    write(POLITE + AS_TRL)
    assert scores({"id": "my_rewards.py:politeness"}).total == [1.0, 0.0]
    assert scores({"id": "my_rewards.py:politeness", "args": {"word": "thanks"}}).total == [0.0, 1.0]
    found = scores({"id": "my_rewards.py:exact", "args": {"bonus": 0.5}})
    assert (found.total, [*found.parts]) == ([1.5, 0.5], ["exact"])
    # an argument of the YAML comes before the column of its name
    own = {"solution": ["thanks", "thanks"]}
    for name in ("exact", "exact_of_all"):
        assert scores({"id": f"my_rewards.py:{name}", "args": own}).total == [0.0, 1.0]


def test_a_function_of_a_module_and_parts_of_a_sum(write, tmp_path, monkeypatch):
    write(POLITE, "shop_of_words/__init__.py")
    write(AS_TRL, "shop_of_words/trl.py")
    monkeypatch.syspath_prepend(tmp_path)
    polite, exact = {"id": "shop_of_words:politeness", "weight": 0.5}, {"id": "shop_of_words.trl:exact"}
    found = scores(composite(polite, composite(exact) | {"weight": 2}, {"id": "NoReward"}))
    assert [*found.parts] == ["politeness", "composite", "no_reward"]
    assert found.total == [2.5, 0.0]


def test_two_functions_of_one_name_from_two_files_of_one_name(write):
    write("def f(dialogues):\n    return [1.0] * len(dialogues)\n", "a/rewards.py")
    write("def f(dialogues):\n    return [2.0] * len(dialogues)\n", "b/rewards.py")
    found = scores(composite({"id": "a/rewards.py:f"}, {"id": "b/rewards.py:f"}))
    assert {name: part.raw for name, part in found.parts.items()} == {"f": [1.0, 1.0], "f_2": [2.0, 2.0]}


def test_a_file_runs_once_until_it_changes(write):
    count = "import sys\nsys.runs_of_a_test = getattr(sys, 'runs_of_a_test', 0) + 1\n"
    write(count + POLITE)
    for _ in range(3):
        scores(composite({"id": "my_rewards.py:politeness"}, {"id": "./my_rewards.py:politeness"}))
    assert sys.runs_of_a_test == 1
    write(count + POLITE.replace("float(", "3 * float("))
    assert scores({"id": "my_rewards.py:politeness"}).total == [3.0, 0.0]
    del sys.runs_of_a_test


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("def f(:\n", "my_rewards.py:f", ["SyntaxError", "my_rewards.py"]),
        ("x = 1\nraise OSError('no disk')\n", "my_rewards.py:f", ["OSError: no disk", "my_rewards.py:2"]),
        ("import sys\nsys.exit(0)\n", "my_rewards.py:f", ["SystemExit"]),
        ("class f:\n    def __call__(self, dialogues): ...\n", "my_rewards.py:f", ["class", "register"]),
        ("f = 3\n", "my_rewards.py:f", ["found 3"]),
        ("def polite(dialogues): ...\n", "my_rewards.py:polit", ["'polit'", "did you mean 'polite'"]),
        (POLITE, "my_rewards.py:", ["FILE.py:FUNCTION"]),
        (POLITE, "my rewards:politeness", ["FILE.py:FUNCTION"]),
        (POLITE, "absent.py:f", ["absent.py is not a regular file"]),
        (POLITE, "absent_module.part:f", ["absent_module", "PYTHONPATH"]),
    ],
)
def test_what_is_refused(write, text, name, words):
    write(text)
    for node in ({"id": name}, composite({"id": "LengthMatch"}, {"id": name})):
        with pytest.raises(UserError) as refused:
            build_reward(node["id"], node.get("args", {}))
        message = str(refused.value)
        assert all(word in message for word in [f"reward '{name}'", *words]), message
        assert ("args.parts[1]" in message) == ("args" in node)


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("politeness", {"wrod": "tea"}, ["wrod", "did you mean 'word'", "politeness(dialogues, word='please')"]),
        ("politeness", {"dialogues": []}, ["dialogues"]),
        ("exact", {"completions": []}, ["completions", "data"]),
        ("exact", {3: 4}, ["keywords must be strings"]),
    ],
)
def test_arguments_that_the_function_does_not_take(write, name, args, words):
    write(POLITE + AS_TRL)
    with pytest.raises(UserError) as refused:
        build_reward(f"my_rewards.py:{name}", args)
    assert all(word in str(refused.value) for word in words), refused.value


def test_a_column_of_the_data_has_the_name_that_env_args_gives_it(write):
    write(AS_TRL)
    dialogue = Dialogue(["Tea ?"], "yes", reference="yes")
    node = composite(composite({"id": "my_rewards.py:exact"}))
    reward = build_reward(node["id"], node["args"], {"reference": "solution"})
    reward_without = build_reward(node["id"], node["args"])
    assert Scorer(reward).score([dialogue]).total == [1.0]
    (inner,) = [one for one in walk(reward_without) if one.name == "exact"]
    with pytest.raises(UserError, match="solution"):
        inner.check_prompts([dialogue])


# -- async def

MEETING = """
import asyncio

arrived, loops = [], []

async def first(dialogues):
    loops.append(asyncio.get_running_loop())
    while not arrived:
        await asyncio.sleep(0)
    return [1.0] * len(dialogues)

async def second(completions, **columns):
    loops.append(asyncio.get_running_loop())
    arrived.append(1)
    return [2.0] * len(completions)

async def fails(dialogues):
    await asyncio.sleep(0)
    raise OSError("no server")

def passes_on(dialogues):
    return second([one.response for one in dialogues])

cancelled = []

async def never(dialogues):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append(1)
        raise
"""


def test_coroutines_of_a_sum_wait_together_in_one_loop(write):
    """The first ends only when the second has begun, which is called once."""
    write(MEETING)
    reward = build_reward(
        "CompositeReward", composite(*({"id": f"my_rewards.py:{n}"} for n in ("first", "second", "passes_on")))["args"]
    )
    names = reward.weighted_parts["first"].reward.function.__globals__
    for batch in (1, 2):
        found = Scorer(reward).score(SAID)
        assert {name: part.raw[0] for name, part in found.parts.items()} == {"first": 1, "second": 2, "passes_on": 2}
        assert (len(names["loops"]), len({*map(id, names["loops"])})) == (3 * batch, 1)
    assert Scorer(build_reward("my_rewards.py:second", {})).begin(SAID)().total == [2.0, 2.0]


def test_a_coroutine_may_be_scored_where_another_loop_runs(write):
    write(MEETING)

    async def notebook():
        return scores({"id": "my_rewards.py:second"}).total

    assert asyncio.run(notebook()) == [2.0, 2.0]


def test_a_coroutine_that_fails_names_its_line_and_ends_the_others(write):
    write(MEETING)
    parts = composite({"id": "my_rewards.py:fails"}, {"id": "my_rewards.py:never"})
    with pytest.raises(RewardError, match=r"'fails' raised OSError: no server at my_rewards\.py:19"):
        scores(parts)
    with pytest.raises(RewardTimeout, match="'never'"):
        scores({"id": "my_rewards.py:never"}, timeout_s=0.05)
    never = build_reward("my_rewards.py:never", {}).function
    assert (
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop_of()).result() is None
    )  # what was cancelled has ended
    assert never.__globals__["cancelled"] == [1, 1]


def loop_of():
    from rlhf_dialog.rewards import function_reward

    return function_reward._loops[0][1]


# -- the code of a run


def test_the_hash_is_that_of_the_named_file_and_of_what_defines_the_function(write, tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(tmp_path)
    write(POLITE, "words_of_a_test.py")
    path = write("from words_of_a_test import politeness\nWORD = 1\n")

    def code():
        reward = build_reward("my_rewards.py:politeness", {})
        return code_of([reward.function], [reward.file])

    with caplog.at_level(logging.WARNING):
        first = code()
    assert caplog.text == ""
    assert {"my_rewards.py", "words_of_a_test.py"} <= first.keys()
    path.write_text("# said\nfrom words_of_a_test import politeness\nWORD = 1\n", encoding="utf-8")
    assert code() == first
    path.write_text("from words_of_a_test import politeness\nWORD = 2\n", encoding="utf-8")
    assert {name for name, value in code().items() if first[name] != value} == {"my_rewards.py"}
