"""A function as the reward: of dialogues, or with the parameters of TRL's reward functions."""

import json
from pathlib import Path

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import RewardError, Scorer
from rlhf_dialog.rewards.function_reward import FunctionReward

QUESTION = Dialogue(["Is it far ?"], "Two streets .", reference="No .", references=["No .", "Near ."], act=2)
TEXTS = Dialogue(["a", "b"], "c", meta={"split": "train", "index": 3, "dialogue": 1, "group": 0, "topic": "letters"})


def read(tmp_path: Path, *rows: dict, **rules) -> list[Dialogue]:
    """The prompts of a file with these rows, each with a reply."""
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    prompts = PromptRules(**rules).load(str(tmp_path / "train.jsonl"), "train")
    return [prompt.with_reply(f"reply {number}") for number, prompt in enumerate(prompts)]


def asked(function, dialogues, columns=None) -> list:
    reward = FunctionReward(function, columns)
    reward.check_prompts(dialogues)
    return Scorer(reward).score(dialogues).total


def test_a_function_of_dialogues_gets_dialogues():
    def long(some, least=3):
        return [float(len(dialogue.response.split()) >= least) for dialogue in some]

    assert asked(long, [QUESTION, TEXTS]) == [1.0, 0.0]
    assert asked(lambda some: [0.5] * len(some), [QUESTION]) == [0.5]
    assert [FunctionReward(long).name, FunctionReward(lambda some: []).name] == ["long", "lambda"]


def test_texts_without_speakers_are_strings_as_in_trls_standard_format():
    seen = []

    def reward(prompts, completions, **columns):
        seen.append((prompts, completions, columns))
        return [1.0] * len(prompts)

    more = TEXTS.with_reply("d").with_user_turn("e").with_reply("f")
    assert asked(reward, [TEXTS, more]) == [1.0, 1.0]
    ((prompts, completions, columns),) = seen
    assert prompts == ["a\nb", "a\nb"]
    assert completions == ["c", "c\nd\ne\nf"]
    assert columns == {"topic": ["letters", "letters"]}
    assert asked(reward, []) == []


def test_messages_with_roles_are_messages_as_in_trls_conversational_format(tmp_path):
    system, user = {"role": "system", "content": "Be brief ."}, {"role": "user", "content": "Is it far ?"}
    answer, more = {"role": "assistant", "content": "No ."}, {"role": "user", "content": "Thanks ."}
    rows = [{"prompt": [system, user], "level": 1}, {"prompt": [user, answer, more], "level": None}]
    dialogues = read(tmp_path, *rows)
    dialogues[1] = dialogues[1].with_user_turn("Bye .").with_reply("Bye bye .")
    seen = []

    def reward(completions, prompts, level):
        seen.extend([prompts, completions, level])
        return [len(completion[0]["content"]) for completion in completions]

    assert asked(reward, dialogues) == [7, 7]
    prompts, completions, level = seen
    assert prompts == [[system, user], [user, answer, more]]
    said = [("assistant", "reply 1"), ("user", "Bye ."), ("assistant", "Bye bye .")]
    assert completions[0] == [{"role": "assistant", "content": "reply 0"}]
    assert completions[1] == [{"role": role, "content": text} for role, text in said]
    assert level == [1, None]


def test_the_roles_of_a_prompt_are_those_of_its_last_turns(tmp_path):
    roles = ["user", "assistant", "user", "assistant", "user"]
    row = {"messages": [{"role": role, "content": f"{role} {i}"} for i, role in enumerate(roles)]}
    shown = [(d.prompt_turns, d.roles) for d in read(tmp_path, row, context_size=2)]
    assert shown == [(["user 0"], ["user"]), (["assistant 1", "user 2"], ["assistant", "user"])]
    assert [d.roles for d in read(tmp_path, {"messages": ["a", "b", "c"]})] == [None, None]


@pytest.mark.parametrize(
    ("row", "columns", "name"),
    [
        ({"prompt": "Is it far ?", "answer": "No ."}, {}, "answer"),
        ({"prompt": "Is it far ?", "solution": "No ."}, {"reference": "solution"}, "solution"),
        ({"prompt": "Is it far ?", "solution": "No ."}, {}, "solution"),
        ({"prompt": "Is it far ?", "answer": "No ."}, {}, "reference"),
    ],
)
def test_a_column_has_its_name_in_the_data_whatever_it_was_read_as(tmp_path, row, columns, name):
    dialogues = read(tmp_path, row, columns=columns)
    wanted = []
    namespace = {"wanted": wanted}
    exec(f"def named(completions, {name}):\n    wanted.append({name})\n    return [0.0]", namespace)
    asked(namespace["named"], dialogues, columns)

    def every(completions, **kwargs):
        wanted.append(kwargs[name])
        return [0.0]

    asked(every, dialogues, columns)
    assert wanted == [["No ."], ["No ."]]


def test_a_parameter_that_is_no_column_is_refused_and_one_with_a_default_is_left_out():
    def wants(prompts, completions, trainer_state):
        return [0.0]

    def could(prompts, completions, log_metric=None, **columns):
        return [float(log_metric is None and "log_metric" not in columns)]

    with pytest.raises(UserError, match=r"trainer_state.*: topic$"):
        FunctionReward(wants).check_prompts([TEXTS])
    assert asked(could, [TEXTS]) == [1.0]


def test_a_score_that_is_none_is_no_score():
    def judged(completions, **_):
        return [None, 1.0]

    with pytest.raises(RewardError, match="None"):
        asked(judged, [QUESTION, TEXTS])
    total = Scorer(FunctionReward(judged), skip_unscored=True).score([QUESTION, TEXTS]).total
    assert [value == value for value in total] == [False, True]


@pytest.mark.parametrize("wrong", [3, "Meteor", FunctionReward, lambda: [], lambda first, second: []])
def test_what_is_no_reward_function_is_refused(wrong):
    with pytest.raises(UserError, match=r"^reward: found "):
        FunctionReward(wrong)


def test_a_column_of_the_data_comes_before_what_was_read_as_one_and_may_be_empty():
    def reward(completions, **columns):
        return [columns["answer"] == ["kept"] and columns["level"] == [None] and columns["reference"] == ["No ."]]

    known = Dialogue(["Is it far ?"], "Yes .", reference="No .", meta={"answer": "kept", "level": None})
    assert asked(reward, [known]) == [1.0]
