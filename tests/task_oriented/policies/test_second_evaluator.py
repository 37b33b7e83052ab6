"""Success, reward, turns and inform F1, once more: from the text that --transcripts prints and the data base alone."""

import json
import re
from functools import partial
from importlib import resources

import pytest

from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted, RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.policies.sampling.transcripts import transcript
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from tests.parts.strange_domains import STRANGE, strange

GOAL = re.compile(r"goal: (.*?); wants to know (.*?)(?:; not (.*))?$", re.MULTILINE)
ACT = re.compile(r"(\w+)\(([^()=]*)=?([^()]*)\)")
SAID = re.compile(r"^  (user|system)  ?(.*?)(?:   \[.*\])?$", re.MULTILINE)
END = re.compile(
    r"^  (success|failure) after (\d+) turns \((.*?)\); reward (\S+); inform: .* f1 ([\d.]+)$", re.MULTILINE
)


def judged(rows, text):
    """The verdict on one transcript; `rows` is the data base, a list of dicts of text."""
    table = {row["name"].lower(): {slot: value.lower() for slot, value in row.items()} for row in rows}
    constraints, wanted, refused = GOAL.findall(text)[-1]  # as the goal was at the end
    constraints = dict(pair.split("=", 1) for pair in constraints.split(", "))
    requests = [slot for slot in wanted.split(", ") if slot != "name"]
    turns = [(who, ACT.findall(acts)) for who, acts in SAID.findall(text)]
    offered, about, told = [], None, {}
    for who, acts in turns:
        if who == "system":
            named = [v for intent, slot, v in acts if slot == "name" and intent in ("inform", "except") and v != "none"]
            offered, about = (named, named[0] if len(named) == 1 else None) if named else (offered, about)
            for intent, slot, value in acts:
                if about and intent == "inform" and slot != "name":
                    told.setdefault(about, {})[slot] = value
    found = []
    for venue in offered:
        row, said = table[venue], told.get(venue, {})
        fits = all(value == "dontcare" or row.get(slot) == value for slot, value in constraints.items())
        right = [slot for slot in requests if said.get(slot) == row.get(slot, "not available")]
        wrong = [slot for slot in said if slot not in requests and slot not in constraints]
        precision = len(right) / len([*right, *wrong]) if right or wrong else float(not requests)
        recall = len(right) / len(requests) if requests else 1.0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        found.append((fits and len(right) == len(requests) and venue not in refused.split(", "), f1))
    success, f1 = max(found, default=(False, 0.0 if requests else 1.0))
    is_bye = turns[-1][0] == "user" and any(intent == "bye" for intent, *_ in turns[-1][1])
    length = sum(who == "system" for who, _ in turns)
    return success and is_bye, length, 20 * (success and is_bye) - length, f1


def texts(domain, rate, policy, number=60):
    environment = ActLevel(domain, rate)
    episodes = run_dialogues(policy, partial(ActLevel, domain, rate), 11, range(number))
    return [transcript(domain, environment.names, episode) for episode in episodes]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("name", ["restaurant", "one slot", "twelve slots", "gaps"])
def test_the_verdicts_of_two_evaluators_agree(name, rate):
    if name == "restaurant":
        domain = load_domain(name)
        file = resources.files("rlhf_dialog.task_oriented.domains") / "restaurant.json"
        rows = json.loads(file.read_text(encoding="utf-8"))["entities"]
    else:
        domain, rows = strange(name), STRANGE[name]["entities"]
    seen = set()
    for policy in (Handcrafted(domain), RandomPolicy(PolicySpec(1, 1))):
        for text in texts(domain, rate, policy):
            ((verdict, length, how, reward, f1),) = END.findall(text)
            success, turns, paid, own_f1 = judged(rows, text)
            assert (verdict == "success", int(length), float(reward)) == (success, turns, paid), text
            assert float(f1) == pytest.approx(own_f1, abs=0.005), text
            assert (how == "the user said goodbye") == (turns < 25 or success or " bye()" in text.splitlines()[-2])
            seen.add(success)
    assert seen == {True, False}
