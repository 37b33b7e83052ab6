"""The goal-oriented environment in words: its parts, its line of the data base, its verdict."""

import json
from random import Random

import pytest

from rlhf_dialog.environments.base import EpisodeLimits, answer, build_environment, open_episode
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.acts import Act, format_acts, parse_acts
from rlhf_dialog.task_oriented.world.goal_oriented import GoalOriented
from rlhf_dialog.task_oriented.world.success import Evaluator
from rlhf_dialog.task_oriented.world.summary import SummaryActions, summarise
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


class Speaker:
    """The handcrafted policy in words: it reads the user's sentences, and does not look behind them."""

    def __init__(self, say=lambda acts: READS.say(acts, Random(1)), read=SAYS.read):
        self.say, self.read = say, read
        self.tracker, self.actions, self.policy = FocusTracker(DOMAIN), SummaryActions(DOMAIN), Handcrafted(DOMAIN)
        self.said = [Act("hello")]

    def reply(self, text):
        belief = self.tracker.update(self.said, [(self.read(text.split("\n")[0]), 1.0)])
        summary = summarise(DOMAIN, belief)
        mask, row = self.actions.mask(belief, summary), self.policy.layout.encode(belief, summary)
        number = int(self.policy.act(row[None], mask[None])[0][0])
        self.said = self.actions.acts(self.actions.names[number], belief, summary)
        return self.say(self.said)


def played(environment, reply, **reset):
    """All texts of one dialogue, the sum of its rewards, and the last info."""
    text, info = environment.reset(**reset)
    texts, total, ended = [text], 0.0, False
    while not ended:
        texts.append(reply(text))
        text, reward, terminated, truncated, info = environment.step(texts[-1])
        texts.append(text)
        total, ended = total + reward, terminated or truncated
    return texts, total, info | {"terminated": terminated}


@pytest.mark.parametrize("words", [WORDS, {}])
def test_the_same_dialogues_as_at_act_level(words):
    """Words add nothing and lose nothing: user, policy and verdict are those of `ActLevel`."""
    acts, in_words = ActLevel(DOMAIN), environment_of(**words)
    policy = Handcrafted(DOMAIN)
    for dialogue in range(25):
        reset = {"seed": 3, "options": {"dialogue": dialogue}}
        speaker = Speaker() if words else Speaker(format_acts, parse_acts)
        _, total, info = played(in_words, speaker.reply, **reset)
        observation, expected = acts.reset(**reset)
        while "success" not in expected:
            chosen, _ = policy.act(observation[None], expected["action_mask"][None])
            observation, _, _, _, expected = acts.step(chosen[0])
        for key in ("user_acts", "system_acts", "success", "goal", "first_goal", "turns"):
            assert info[key] == expected[key], key
        assert total == 20 * info["success"] - info["turns"]
        assert info["outcome"].f1 == expected["inform"]["f1"]


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
LIE = {"requests": {"name": "cid", "phone": "33"}, "name": "cid"}


@pytest.mark.parametrize("lie", ["forgets", "claims"])
def test_a_user_that_lies_is_not_believed(lie):
    """It praises a venue that does not fit, thanks, leaves, and at the end wants nothing else, or claims to have heard all."""
    environment = environment_of(TEA)

    class Liar(Scripted):
        def answer(self, system_acts):
            if lie == "forgets":
                self.goal.constraints.clear()
                self.goal.requests.clear()
            else:
                self.goal.requests.update(LIE["requests"])
                self.goal.name = LIE["name"]
            self.success = True
            return parse_acts("thankyou() bye()")

    environment.user = Liar(parse_acts("inform(tea=green)"))
    environment.reset(seed=0, options={"goal": WANTED})
    _, reward, terminated, _, info = environment.step("inform(name=cid) inform(phone=33)")
    assert (reward, terminated, info["success"]) == (-1.0, True, False)
    environment.reset(seed=0, options={"goal": WANTED})
    _, reward, _, _, info = environment.step("inform(name=ada) inform(phone=11)")
    assert (reward, info["success"]) == (19.0, True)


def test_listing_everything_is_not_an_offer():
    environment = environment_of(TEA, user=Scripted(parse_acts("hello()"), [Act("bye")]))
    for venues, success in (("ada ben", True), ("ada ben cid", False), ("cid", False), ("ada zoe", False)):
        environment.reset(seed=0, options={"goal": {"constraints": WANTED["constraints"]}})
        reply = "inform(name=none) " + " ".join(f"except(name={venue})" for venue in venues.split())
        assert environment.step(reply)[4]["success"] is success


@pytest.mark.parametrize("reply", ["", "Goodbye .", "Pardon ?", "Can I help you with anything else ?", "blah " * 99])
def test_nothing_is_earned_by_talking(reply):
    environment = environment_of(**WORDS)
    for dialogue in range(20):
        _, total, info = played(environment, lambda text: reply, seed=2, options={"dialogue": dialogue})
        assert (info["success"], total) == (False, -info["turns"])


def test_the_turn_limit():
    environment = environment_of(TEA, user=Scripted(*[parse_acts("inform(tea=green)")] * 9), max_turns=3)
    _, total, info = played(environment, lambda text: "inform(name=ada) inform(phone=11)", options={"goal": WANTED})
    assert (total, info["turns"], info["terminated"], info["success"]) == (-3.0, 3, False, False)


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


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"user": Scripted([Act("hello")], "bye")}, r"user Scripted: answer returned 'bye'; return a list of Act"),
        ({"user": Scripted(None)}, "user Scripted: begin returned None"),
        ({"nlu": lambda text: text}, r"nlu .*<lambda>: nlu returned 'Hi .'; return a list of Act"),
        ({"nlg": lambda acts, rng: acts}, r"nlg .*<lambda>: returned \[Act\(.*; return a text"),
        (
            {"evaluator": lambda goal, turns: 1.5},
            r"evaluator .*<lambda>: returned 1.5; return a DialogueOutcome, True or False",
        ),
        ({"nlu": lambda text: 1 / 0}, r"nlu raised ZeroDivisionError: .* at .*test_goal_oriented\.py:\d+"),
        (
            {"tracker": type("Bad", (Own,), {"update": lambda self, *_: {"colour": "red"}})()},
            "tracker Bad: update returned",
        ),
        ({"tracker": type("Bad", (Own,), {"update": lambda self, *_: 0.5})()}, r"constraint slots \(tea, area\)"),
        ({"tracker": type("Bad", (Own,), {"domain": None})()}, "tracker Bad: it has no domain; give domain="),
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
        played(environment, lambda text: READS.say(rng.choices(acts, k=rng.randint(1, 4)), rng), seed=seed)


def test_a_guest_of_the_restaurant_guide_in_words():
    environment = build_environment("restaurant", {})
    text, _ = environment.reset(seed=7)
    assert "\n[db] " in text
    assert environment.step("Goodbye .")[1:4] == (-1.0, True, False)


def test_a_domain_of_ones_own_and_its_turn_limit(tmp_path):
    path = tmp_path / "tea.json"
    path.write_text(json.dumps(DATA), encoding="utf-8")
    environment = build_environment("restaurant", {"domain": str(path), "max_turns": 1, "user": "fixed"})
    environment.reset(seed=0)
    assert environment.step("Pardon ?")[1:4] == (-1.0, False, True)
