"""Scripted people: their taste, their errors, the troll's share, and that a seed decides all they do."""

import pytest

from experiments.month.people import TROLL, Host, People, PeopleKeys, Taste, liked_share
from experiments.month.tests.months import SCRIPTS
from rlhf_dialog.feedback.store.store import Store
from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent
from tests.parts.taught_bots import new_bot

ASKS = Taste(asks=True, max_words=6)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    bot = new_bot(tmp_path_factory.mktemp("people"))
    agent = ChatAgent.load(bot.agent_folder("0001"), settings=AgentSettings(max_new_tokens=6))
    return Host(agent, "0001", 2)


def talked(folder, host, night=1, seed=0, **keys):
    store = Store.create(folder / f"{len(list(folder.iterdir()))}.sqlite")
    People(PeopleKeys(**{"taste": ASKS, "dialogues_per_night": 12} | keys), SCRIPTS, seed).talk(store, host, night)
    return store


def said(store, without=()):
    """What was stored but for times and numbers: dialogues, turns, feedback, without one person's."""
    own = {store.hash_person(name) for name in without}
    kept = [one.id for one in store.dialogues() if one.person not in own]
    turns = {turn.id: turn for one in kept for turn in store.turns(one)}
    events = [
        (e.dialogue, e.kind, e.value, e.text, turns[e.turn].text, e.other and turns[e.other].text)
        for e in store.feedback(newest=False)
        if e.turn in turns
    ]
    return sorted(kept), sorted((t.dialogue, t.position, t.text, t.token_ids) for t in turns.values() if t.text), events


@pytest.mark.parametrize(
    ("taste", "answer", "liked"),
    [
        ({"asks": True, "max_words": 4}, "For how long ?", True),
        ({"asks": True}, "Why ? Tell me .", False),
        ({"asks": False, "min_words": 3}, "I see the sea .", True),
        ({"asks": False, "min_words": 3}, "Do you see it ?", False),
        ({"says": "please"}, "Come in , Please .", True),
        ({"says": "please"}, "It pleases me .", False),
        ({}, "  ", False),
        ({"asks": True, "max_words": 3, "matches": "any"}, "Yes .", True),
        ({"asks": True, "max_words": 3, "matches": "any"}, "Would you like to sit outside ?", True),
        ({"asks": True, "max_words": 3, "matches": "any"}, "I would like to sit outside .", False),
    ],
)
def test_a_taste(taste, answer, liked):
    assert Taste(**taste).likes(answer) == liked


def test_the_share_of_liked_answers():
    assert liked_share(["Why ?", "No .", "Who ?", "He ."], ASKS) == 0.5


def test_a_seed_decides_all_of_it_and_nights_differ(tmp_path, host):
    first, again, other, later = (said(talked(tmp_path, host, **keys)) for keys in ({}, {}, {"seed": 1}, {"night": 2}))
    assert first == again
    assert len({str(one[0]) for one in (first, other, later)}) == 3
    assert first[2]


@pytest.mark.parametrize("share", [0.4, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.25, 0.6))])
def test_the_troll_sends_exactly_the_share(tmp_path, host, share):
    events = (store := talked(tmp_path, host, troll_share=share)).feedback(newest=False)
    sent = sum(event.person == store.hash_person(TROLL) for event in events)
    assert sent == round((len(events) - sent) * share / (1 - share))
    assert len(store.feedback()) == len(events)  # nothing replaces what was said before


def judged(store, person):
    """(is liked by the taste, was liked) of each thumb and score of the troll, or of the others."""
    own, texts = store.hash_person(TROLL), {t.id: t.text for d in store.dialogues() for t in store.turns(d.id)}
    some = [e for e in store.feedback() if e.kind in ("thumb", "score") and (e.person == own) == (person == TROLL)]
    return [(ASKS.likes(texts[e.turn]), e.value > (0 if e.kind == "thumb" else 3)) for e in some]


@pytest.mark.slow
def test_people_err_in_a_share_of_their_judgements_and_the_troll_always(tmp_path, host):
    store = talked(tmp_path, host, dialogues_per_night=150, noise=0.2)
    wrong = [liked != said for liked, said in judged(store, "people")]
    assert 0.09 < sum(wrong) / len(wrong) < 0.31  # 0.2 within four standard errors
    assert all(liked != said for liked, said in judged(store, TROLL))


class Answers(Host):
    """Answers with the texts that are given, in turn."""

    def __init__(self, host, texts):
        for name in ("agent", "version", "context_size"):
            object.__setattr__(self, name, getattr(host, name))
        object.__setattr__(self, "texts", texts)

    def answers(self, visits, seed):
        found = super().answers(visits, seed)
        replies = [type(reply)(self.texts[seed.endswith("again")], reply.ids, False) for reply, _ in found]
        return [(reply, logprobs) for reply, (_, logprobs) in zip(replies, found, strict=True)]


def test_the_liked_one_of_two_answers_is_chosen_and_the_talk_goes_on_with_it(tmp_path, host):
    keys = {"choice_share": 1, "score_share": 0, "edit_share": 0, "noise": 0, "feedback_share": 1}
    store = talked(tmp_path, Answers(host, ["No .", "Why not ?"]), **keys)
    own, texts = store.hash_person(TROLL), {t.id: t for d in store.dialogues() for t in store.turns(d.id)}
    events = store.feedback()
    assert {event.kind for event in events} == {"choice"}
    assert {(event.person == own, texts[event.turn].text) for event in events} == {(False, "Why not ?"), (True, "No .")}
    assert all(texts[event.turn].position == texts[event.other].position for event in events)
