"""Several people at once: one generation for all who wait, and each gets what it would get alone."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.sessions import batched_generation as module
from rlhf_dialog.feedback.sessions.batched_generation import Answering, AnsweringClosed, GeneratedAnswer, ReplyOptions
from rlhf_dialog.feedback.sessions.loaded_versions import load_agent
from rlhf_dialog.models.chat_agent import ChatAgent, GrowingReply
from rlhf_dialog.models.generation import at_temperature, random_numbers
from tests.parts.agents import save
from tests.parts.bots import new_version

TURNS = [["Hello"], ["One", "Two two two", "Three"], ["Where is the ladder ?"], ["a"]]


def last(answers) -> GeneratedAnswer:
    *_, answer = answers
    return answer


@pytest.fixture
def gate(monkeypatch):
    return Gate(monkeypatch)


class Gate:
    """`stream`, which begins when the gate is open, and writes at the `pace`; `sizes` are those of the batches."""

    def __init__(self, monkeypatch):
        self.open, self.entered, self.sizes, self.agents, self.steps = threading.Event(), threading.Event(), [], [], []
        self.pace = threading.Semaphore(10**6)
        self._stream = module.stream
        monkeypatch.setattr(module, "stream", self)

    def __call__(self, agent, prompts, show, numbers, systems):
        self.sizes.append(len(prompts))
        self.agents.append(agent)
        self.entered.set()
        assert self.open.wait(60)
        self.steps.append(0)

        def show_at_the_pace(replies):
            assert self.pace.acquire(timeout=60)
            self.steps[-1] += 1
            return show(replies)

        self._stream(agent, prompts, show_at_the_pace, numbers, systems)


def waiting(answering: Answering, count: int) -> None:
    """Return when `count` requests wait."""
    deadline = time.monotonic() + 60
    while len(answering._waiting) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_an_answer_is_what_the_agent_gives_for_its_random_numbers(chat_agent):
    numbers = random_numbers(1, chat_agent.sampling, torch.device("cpu"), torch.Generator().manual_seed(7))
    responses = chat_agent.generate(chat_agent.encode([["Hello"]]), numbers)
    (reply,) = chat_agent.read(responses)
    with Answering(chat_agent) as answering:
        answers = list(answering.stream(["Hello"], answering.begin(), seed=7))
        turns = [f"turn {i}" for i in range(9)]
        long, short = (last(answering.stream(some, "agent", seed=1)) for some in (turns, [" turn 4", *turns[5:]]))
    assert long.ids == short.ids  # context_size is 5, as in a chat
    answer = answers[-1]
    assert [len(one.ids) for one in answers] == list(range(1, len(answers) + 1))
    assert [one.ended for one in answers] == [False] * (len(answers) - 1) + [True]
    assert all(late.text.startswith(early.text) for early, late in pairwise(answers))
    assert (answer.text, list(answer.ids), answer.ended) == (reply.text, reply.ids, True)
    assert list(answer.logprobs) == responses.logprobs[0][responses.tokens.response_mask[0]].tolist()
    assert (answer.sampling["seed"], answer.sampling["temperature"]) == (7, 1.0)


def test_who_waits_together_is_one_batch_and_gets_what_it_would_get_alone(chat_agent, gate):
    with Answering(chat_agent) as answering, ThreadPoolExecutor() as people:
        version = answering.begin()
        first = people.submit(lambda: last(answering.stream(["I am early"], version, seed=0)))
        assert gate.entered.wait(60)
        others = [
            people.submit(lambda i=i: last(answering.stream(TURNS[i], version, seed=i))) for i in range(len(TURNS))
        ]
        waiting(answering, len(TURNS))
        gate.open.set()
        together = [one.result() for one in others]
        assert first.result().ended
        assert gate.sizes == [1, 4]
        alone = [last(answering.stream(TURNS[i], version, seed=i)) for i in range(len(TURNS))]
    assert [answer.ids for answer in together] == [answer.ids for answer in alone]
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    for a, b in zip(together, alone, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_a_batch_has_at_most_so_many_and_one_version(bot, gate):
    with Answering(bot, max_batch=2) as answering, ThreadPoolExecutor() as people:
        old = answering.begin()
        new_version(bot)
        new = answering.begin()
        assert (old, new) == ("0001", "0002")
        futures = [people.submit(lambda: last(answering.stream(["Hi"], old)))]
        assert gate.entered.wait(60)
        for count, version in enumerate([old, new, old, old], start=1):
            futures.append(people.submit(lambda v=version: last(answering.stream(["Hi"], v))))
            waiting(answering, count)
        gate.open.set()
        assert all(one.result().ended for one in futures)
        assert [agent is answering._served.agent(new) for agent in gate.agents] == [False, False, True, False]
    assert gate.sizes == [1, 2, 1, 1]


def test_other_sampling_is_another_batch_and_a_system_message_or_a_stop_text_is_not(chat_agent, gate):
    asked = [
        ReplyOptions(),
        ReplyOptions(temperature=0.5),
        ReplyOptions(system="Be brief ."),
        ReplyOptions(top_p=0.5, max_new_tokens=3),
        ReplyOptions(stop=("q",)),
        ReplyOptions(temperature=0.5),
    ]
    with Answering(chat_agent) as answering, ThreadPoolExecutor() as people:
        version = answering.begin()
        first = people.submit(lambda: last(answering.stream(["I am early"], version, seed=0)))
        assert gate.entered.wait(60)
        streams = [answering.stream(["Hello"], version, 7, options) for options in asked]
        gate.open.set()
        together = [last(one) for one in streams]
        assert first.result().ended
        assert gate.sizes == [1, 3, 2, 1]
        alone = [last(answering.stream(["Hello"], version, 7, options)) for options in asked]
    assert [one.ids for one in together] == [one.ids for one in alone]
    plain, cooler, behind, short, _, again = together
    assert cooler.ids == again.ids != plain.ids
    assert (cooler.sampling["temperature"], plain.sampling["temperature"]) == (0.5, 1.0)
    assert (len(short.ids), short.truncated, short.sampling["top_p"]) == (3, True, 0.5)
    numbers = random_numbers(1, chat_agent.sampling, torch.device("cpu"), torch.Generator().manual_seed(7))
    for answer, speaker, system in (
        (behind, chat_agent, "Be brief ."),
        (cooler, chat_agent.local(at_temperature(0.5, chat_agent.sampling)), None),
    ):
        prompt = speaker.encode([["Hello"]], [system])
        (reply,) = speaker.read(speaker.generate(prompt, numbers))
        assert (list(answer.ids), answer.num_prompt_ids) == (reply.ids, prompt.prompt_ids.shape[1])


def test_a_seed_gives_the_same_beginning_whatever_the_longest_answer(chat_agent, monkeypatch):
    monkeypatch.setattr(chat_agent, "sampling", replace(chat_agent.sampling, max_new_tokens=40))
    with Answering(chat_agent) as answering:
        version = answering.begin()
        whole, short, longer = (
            last(answering.stream(["Hello"], version, 3, ReplyOptions(max_new_tokens=n))).ids for n in (None, 4, 999)
        )
    assert (len(short), longer) == (4, whole)
    assert whole[:4] == short


def test_an_answer_ends_before_the_first_stop_text_and_shows_no_beginning_of_one(chat_agent):
    with Answering(chat_agent) as answering:
        version = answering.begin()
        whole = last(answering.stream(["Hello"], version, seed=5)).text
        stop = whole[5:8]
        answers = list(answering.stream(["Hello"], version, 5, ReplyOptions(stop=("never said", stop))))
    end = whole.index(stop)
    assert answers[-1].text == whole[:end].rstrip()
    assert (answers[-1].ended, answers[-1].truncated, answers[-1].sampling["stop"]) == (
        True,
        False,
        ["never said", stop],
    )
    assert all(answers[-1].text.startswith(one.text) for one in answers)


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("Yes.\n\nUs", ["\n\nUser:"], "Yes."),
        ("Yes.\n\nUser: no", ["\n\nUser:"], "Yes."),
        ("a b", ["c", "b x"], "a"),
        ("a b", ["c"], "a b"),
        ("abab", ["abc", "ba"], "a"),
    ],
)
def test_what_is_shown_of_a_growing_text(text, stop, shown):
    assert ReplyOptions(stop=tuple(stop)).cut(GrowingReply(text)).text == shown


def test_temperature_0_and_one_next_to_it_take_the_most_likely_token(chat_agent):
    with Answering(chat_agent) as answering:
        version = answering.begin()
        ids = [
            last(answering.stream(["Hello"], version, i, ReplyOptions(temperature=t))).ids
            for i, t in ((0, 0), (1, 1e-30))
        ]
    (reply,) = chat_agent.local(at_temperature(0, chat_agent.sampling)).reply([Dialogue(["Hello"])])
    assert [list(one) for one in ids] == [reply.ids] * 2


def test_of_a_long_history_only_what_may_fit_is_encoded(chat_agent, gate, monkeypatch):
    gate.open.set()
    sizes, encode = [], chat_agent.encode
    monkeypatch.setattr(
        chat_agent, "encode", lambda turns, systems: sizes.append(len(turns[0])) or encode(turns, systems)
    )
    monkeypatch.setattr(chat_agent, "settings", chat_agent.settings.model_copy(update={"context_size": 10**6}))
    turns = [f"This is the turn number {i:03}" for i in range(999)]
    with Answering(chat_agent) as answering:
        version = answering.begin()
        few, many = (last(answering.stream(some, version, seed=1)) for some in (turns[-9:], turns))
    assert few.ids == many.ids
    assert max(sizes) < 9  # of 27 bytes each, where there is room for 100


def test_a_system_message_without_room_for_a_dialogue_is_refused(chat_agent):
    with Answering(chat_agent) as answering:
        version = answering.begin()
        with pytest.raises(UserError, match="of 100 tokens"):  # max_prompt_length
            answering.stream(["Hello"], version, 0, ReplyOptions(system="x" * 90))
        assert last(answering.stream(["Hello"], version, 0, ReplyOptions(system="x" * 80))).ended


def test_a_dialogue_goes_on_with_a_version_that_is_kept_and_else_with_the_champion(bot):
    new_version(bot)
    old, new = "0001", "0002"
    with Answering(bot) as answering:
        assert [answering.begin(version) for version in (None, old, "0009")] == [new, old, new]
        with bot._changing() as tree:
            tree["versions"][old]["tainted"] = True
        assert answering.begin(old) == new
        with bot._changing() as tree:
            tree["versions"][old] |= {"tainted": False, "status": "refused"}
        assert answering.begin(old) == new
        with bot._changing() as tree:
            tree["versions"][old]["status"] = "rolled back"
        assert answering.begin(old) == old


def test_the_seed_of_the_program_decides_all_answers(chat_agent):
    def said(seed):
        with Answering(chat_agent, seed=seed) as answering:
            version = answering.begin()
            return [last(answering.stream(["Hello"], version)).ids for _ in range(3)]

    first = said(5)
    assert first == said(5) != said(6)
    assert len(set(first)) > 1


def test_who_leaves_is_not_generated_for(chat_agent, gate):
    gate.open.set()
    gate.pace = threading.Semaphore(1)
    with Answering(chat_agent) as answering:
        version = answering.begin()
        answers = answering.stream(["Hello"], version, seed=3)
        next(answers)
        answers.close()
        gate.pace.release(10**6)
        answer = last(answering.stream(["Hello"], version, seed=3))
    assert gate.steps[0] <= 2 < len(answer.ids)
    assert gate.steps[1:] == [len(answer.ids)]


def test_an_end_reaches_everybody(chat_agent, gate):
    answering = Answering(chat_agent)
    version = answering.begin()
    with ThreadPoolExecutor() as people:
        futures = [people.submit(lambda: list(answering.stream(["Hi"], version, seed=0)))]
        assert gate.entered.wait(60)
        futures.append(people.submit(lambda: list(answering.stream(["Hi"], version, seed=0))))
        waiting(answering, 1)
        closing = people.submit(answering.close)
        while not answering._closed:
            time.sleep(0.001)
        gate.open.set()
        closing.result()
        for future in futures:
            with pytest.raises(AnsweringClosed):
                future.result()
    assert answering._worker is not None
    assert not answering._worker.is_alive()
    with pytest.raises(AnsweringClosed):
        list(answering.stream(["Hi"], version))
    answering.close()


def test_an_error_reaches_the_batch_and_the_next_one_is_answered(chat_agent, monkeypatch):
    working = module.stream

    def failing(*_):
        monkeypatch.setattr(module, "stream", working)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(module, "stream", failing)
    with Answering(chat_agent) as answering:
        version = answering.begin()
        with pytest.raises(RuntimeError, match="out of memory"):
            list(answering.stream(["Hi"], version))
        assert last(answering.stream(["Hi"], version)).ended


@pytest.mark.slow
def test_an_answer_that_goes_into_a_loop_ends_there_and_an_evaluations_reply_does_not(tmp_path):
    save(tmp_path, {"max_new_tokens": 90, "max_prompt_length": 100, "chat_temperature": 0}, initializer_range=0.3)
    plain, agent = ChatAgent.load(tmp_path), load_agent(tmp_path)
    for one in (plain, agent):
        one.policy.lm.transformer.wpe.weight.data.zero_()  # without positions it loops
    plain.sampling = replace(plain.sampling, greedy=True)
    (reply,) = plain.reply([Dialogue(["Hello"])])
    ids = reply.ids
    loops = [n for n in range(24, 91) if ids[n - 24 : n - 16] == ids[n - 16 : n - 8] == ids[n - 8 : n]]
    assert len(ids) == 90
    assert loops[0] < 90
    with Answering(agent) as answering:
        answer = last(answering.stream(["Hello"], answering.begin()))
    assert (answer.ids, answer.ended, answer.truncated) == (tuple(ids[: loops[0]]), True, False)
