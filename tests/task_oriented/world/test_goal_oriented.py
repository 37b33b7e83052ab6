import json
from random import Random

import pytest

from rlhf_dialog.environments.base import EpisodeLimits, answer, build_environment, open_episode
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.world.acts import Act, format_acts, parse_acts
from rlhf_dialog.task_oriented.world.goal_oriented import GoalOriented
from rlhf_dialog.task_oriented.world.success import Evaluator
from rlhf_dialog.task_oriented.world.tracker import FocusTracker
from rlhf_dialog.task_oriented.world.users import AgendaUser
from rlhf_dialog.task_oriented.world.words import system_words, user_words
from tests.parts.small_domain import DATA, small_domain

DOMAIN, TEA = load_domain("restaurant"), small_domain()
SAYS, READS = user_words(DOMAIN), system_words(DOMAIN)
WORDS = {"nlu": READS.read, "nlg": SAYS.say}


def environment_of(domain=DOMAIN, /, **parts):
    parts = {"user": AgendaUser(domain), "tracker": FocusTracker(domain), "evaluator": Evaluator(domain)} | parts
    return GoalOriented(**parts)


def test_the_line_of_the_data_base():
    """By hand: two green teas in the north, Ada first; an alternative is Ben; then only Ada again fits `no offer left`."""
    environment = environment_of(TEA, user=Scripted(), max_turns=9)
    said = [
        ("inform(tea=green) inform(area=north)", "2 match: name=ada, tea=green, area=north"),
        ("request(phone)", "2 match: name=ada, phone=11, tea=green, area=north"),
        ("reqalts()", "2 match: name=ben, phone=22, tea=green, area=north"),
        ("inform(tea=white)", "0 match"),
        ("inform(tea=black) inform(area=south)", "2 match: name=dot, phone=44, tea=black, area=south"),
    ]
    environment.user.turns = [parse_acts(text) for text, _ in said]
    texts = [environment.reset(seed=0)[0], environment.step("inform(name=ada)")[0]]
    texts += [environment.step(reply)[0] for reply in ("inform(name=ada)", "inform(name=ben)", "inform(name=none)")]
    assert texts == [f"{text}\n[db] {line}" for text, line in said]


@pytest.mark.parametrize(
    ("length", "line"),
    [
        (47, "2 match: name=ada, hours=9 to 5, tea=green"),  # letters, with `[db] `
        (46, "2 match: name=ada, hours=9 to 5"),
        (35, "2 match: name=ada, tea=green"),
        (10, "2 match"),
    ],
)
def test_slots_that_make_the_line_too_long_are_left_out_and_the_sentence_never(length, line):
    asked = "inform(tea=green) inform(area=north) request(hours)"
    environment = environment_of(TEA, user=Scripted(parse_acts(asked)), line_length=length)
    assert environment.reset(seed=0)[0] == f"{asked}\n[db] {line}"


class Scripted:
    """Says what it is made to say."""

    def __init__(self, *turns, goal=None):
        self.turns, self.ends_with = list(turns), goal

    def begin(self, goal, rng):
        self.goal, self.left = goal, list(self.turns)
        return self.left.pop(0)

    def answer(self, system_acts):
        self.goal = self.ends_with or self.goal
        return self.left.pop(0)


WANTED = {"constraints": {"tea": "green", "area": "north"}, "requests": ["phone"]}


def test_a_user_that_lies_is_not_believed():
    """It praises a venue that does not fit, thanks, leaves, and at the end wants nothing else."""
    environment = environment_of(TEA)

    class Liar(Scripted):
        def answer(self, system_acts):
            self.goal.constraints.clear()
            self.goal.requests.clear()
            self.success = True
            return parse_acts("thankyou() bye()")

    environment.user = Liar(parse_acts("inform(tea=green)"))
    environment.reset(seed=0, options={"goal": WANTED})
    _, reward, terminated, _, info = environment.step("inform(name=cid) inform(phone=33)")
    assert (reward, terminated, info["success"]) == (-1.0, True, False)
    environment.reset(seed=0, options={"goal": WANTED})
    _, reward, _, _, info = environment.step("inform(name=ada) inform(phone=11)")
    assert (reward, info["success"]) == (19.0, True)


class Own:
    """A tracker of one's own: the constraints that were heard, as a dict."""

    domain = TEA

    def reset(self):
        self.heard = {}

    def update(self, system_acts, n_best):
        self.heard |= {act.slot: act.value for act in n_best[0][0] if act.slot in TEA.constraints}
        return self.heard


def test_each_part_can_be_ones_own():
    environment = GoalOriented(
        Scripted(parse_acts("inform(tea=black)"), parse_acts("bye()"), goal="to have a nice day"),
        Own(),
        lambda goal, turns: goal == "to have a nice day" and turns == [[Act("hello")]],
        nlu=lambda text: [Act(text)],
        nlg=lambda acts, rng: f"<{format_acts(acts)}>",
    )
    prompt = open_episode(environment, 3, EpisodeLimits(step_timeout_s=60))
    assert prompt.prompt_turns == ["<inform(tea=black)>\n[db] 2 match: name=dot, tea=black"]
    text, reward, terminated, truncated, info = answer(environment, "hello")
    assert (text, reward, terminated, truncated, info["success"]) == ("<bye()>", 19.0, True, False, True)


def tracker(**methods):
    return {"tracker": type("Bad", (Own,), methods)()}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"user": Scripted(None)}, "user Scripted: begin returned None"),
        ({"nlu": lambda text: text}, "nlu .*<lambda>: nlu returned 'Hi .'"),
        ({"nlg": lambda acts, rng: acts}, r"nlg .*<lambda>: returned \[Act\("),
        ({"evaluator": lambda goal, turns: 1.5}, "evaluator .*<lambda>: returned 1.5"),
        ({"nlu": lambda text: 1 / 0}, r"nlu raised ZeroDivisionError: .* at .*test_goal_oriented\.py:\d+"),
        (tracker(update=lambda self, *_: {"colour": "red"}), "tracker Bad: update returned"),
        (tracker(update=lambda self, *_: 0.5), r"constraint slots \(tea, area\)"),
        (tracker(domain=None), "tracker Bad: it has no domain"),
        ({"domain": "resturant"}, "did you mean 'restaurant'"),
        ({"max_turns": 0}, "max_turns is 0"),
    ],
)
def test_a_part_that_is_wrong_is_named(parts, words):
    def dialogue():
        environment = environment_of(TEA, **({"user": Scripted([Act("hello")], [Act("bye")])} | parts))
        open_episode(environment, 3)
        answer(environment, "Hi .")

    with pytest.raises(UserError, match=words):
        dialogue()


@pytest.mark.parametrize("user", ["friendly", "unfriendly", "fixed"])
def test_a_system_may_say_anything(user):
    """Whatever a model writes is answered, and the answer can be read."""
    kinds = {"value": ["made up", "thai", "cheap", "the amber lemon"], "": [""]}
    slots = {"*": READS.slots}
    acts = [
        Act("inform" if intent == "missed" else intent, of_slot, value)
        for intent, slot, kind in READS.templates
        for of_slot in slots.get(slot, [slot])
        for value in kinds.get(kind, [kind])
    ]
    environment, rng = environment_of(user=AgendaUser(DOMAIN, user), **WORDS), Random(1)
    for seed in range(60):
        environment.reset(seed=seed)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = environment.step(READS.say(rng.choices(acts, k=rng.randint(1, 4)), rng))
            ended = terminated or truncated


def test_a_domain_of_ones_own_and_its_turn_limit(tmp_path):
    path = tmp_path / "tea.json"
    path.write_text(json.dumps(DATA), encoding="utf-8")
    environment = build_environment("restaurant", {"domain": str(path), "max_turns": 1, "user": "fixed"})
    assert "\n[db] " in environment.reset(seed=0)[0]
    assert environment.step("Pardon ?")[1:4] == (-1.0, False, True)
