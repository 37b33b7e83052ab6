"""Replies: of an agent, without a model, and the references themselves."""

import copy

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation import replies as replies_module
from rlhf_dialog.evaluation.measure import Judges, measure
from rlhf_dialog.evaluation.replies import (
    baseline_replies,
    generate_replies,
    generate_share,
    nearest_replies,
    pick_prompts,
    reference_nll,
)
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import PackedDecoder, Responder, Sampling, StopRule, random_numbers
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.rewards import Intent
from tests.parts import tiny
from tests.parts.evaluations import BASELINES, check_float32
from tests.parts.full_gpu import fill_gpu
from tests.parts.pretended_gpu import CUDA, pretended_gpu


def test_the_texts_of_the_baselines(prompts, agent):
    train = [Dialogue([f"q {i}"], reference=f"{name} train reply") for i, name in enumerate(("first", "second"))]
    found = baseline_replies(prompts, train, agent, seed=4)
    assert set(found) == BASELINES
    texts = {name: [dialogue.response for dialogue in replies.dialogues] for name, replies in found.items()}
    references = [prompt.reference for prompt in prompts]
    assert len(set(texts["constant_reply"])) == len(set(texts["long_constant_reply"])) == 1
    assert len(texts["long_constant_reply"][0].split()) > len(texts["constant_reply"][0].split())
    assert texts["repeat_last_turn"] == [prompt.prompt_turns[-1] for prompt in prompts]
    assert texts["true_replies"] == references
    assert sorted(texts["random_reference"]) == sorted(references)
    assert set(texts["random_train_reply"]) == {one.reference for one in train}
    assert set(texts["nearest_train_reply"]) <= {one.reference for one in train}
    acts = {name: replies.always_act for name, replies in found.items()}
    assert acts == dict.fromkeys(BASELINES) | {"always_inform": 0}
    for replies in found.values():
        assert [d.reference for d in replies.dialogues] == references
        assert [d.prompt_turns for d in replies.dialogues] == [p.prompt_turns for p in prompts]
    assert all(not prompt.response for prompt in prompts)  # the prompts themselves stay as they are


def test_no_random_reference_is_the_prompts_own_and_lengths_are_in_tokens(agent):
    drawn = set()
    for count in (2, 3, 7):
        prompts = [Dialogue(["p"], reference=f"reply {i}") for i in range(count)]
        for seed in range(8):
            found = baseline_replies(prompts, [Dialogue(["q"], reference="x")], agent, seed)["random_reference"]
            assert all(dialogue.response != dialogue.reference for dialogue in found.dialogues)
            drawn.add(tuple(dialogue.response for dialogue in found.dialogues))
    assert len(drawn) > 6  # by the seed
    one = baseline_replies([Dialogue(["p"], reference="abc")], [Dialogue(["q"], reference="x")], agent)
    assert one["true_replies"].num_tokens == [5]  # in bytes: a space, 3 letters, and the separator that ends it
    assert set(one) == BASELINES - {"random_reference"}  # there is no other
    without = {"random_reference", "random_train_reply", "nearest_train_reply", "true_replies"}
    assert set(baseline_replies([Dialogue(["p"])], [], agent)) == BASELINES - without


def test_greedy_replies_depend_on_neither_seed_nor_batches(prompts, agent):
    sampling = Sampling(max_new_tokens=7, greedy=True)
    found = [generate_replies(agent, prompts, sampling, seed, size) for seed, size in ((0, 5), (1, 64))]
    assert [d.response for d in found[0].dialogues] == [d.response for d in found[1].dialogues]


@pytest.mark.slow
def test_sampled_replies_depend_on_the_seed_and_on_neither_batches_nor_ranks(prompts, agent):
    sampling = Sampling(max_new_tokens=7)
    other = generate_replies(agent, prompts, sampling, 4, 64)
    assert all(1 <= n <= 7 for n in other.num_tokens)
    found = [generate_replies(agent, prompts, sampling, 3, size).dialogues for size in (1, 4, 64)]
    responder = Responder(agent.policy, agent.encoder, sampling, agent.stop)
    shares = [
        generate_share(responder, prompts, part, 3, 2, "").dialogues for part in (range(3), range(3, len(prompts)))
    ]
    texts = [[dialogue.response for dialogue in dialogues] for dialogues in (*found, shares[0] + shares[1])]
    assert texts[0] == texts[1] == texts[2] == texts[3] != [dialogue.response for dialogue in other.dialogues]
    assert len(set(texts[0])) > 1


@pytest.mark.slow
def test_a_gpu_gives_the_replies_of_a_cpu(prompts, agent, monkeypatch):
    """The random numbers come from the host; those of a GPU would be others, and change with the size of a batch."""
    drawn = []

    def draw(rows, sampling, device):
        drawn.append(device.type)
        return random_numbers(rows, sampling, device)

    monkeypatch.setattr(replies_module, "random_numbers", draw)
    texts = [one.response for one in generate_replies(agent, prompts, Sampling(7), 3, 4).dialogues]
    with pretended_gpu():
        policy = Policy(copy.deepcopy(agent.policy.lm).to(CUDA)).eval()
        responder = Responder(policy, agent.encoder, Sampling(7), StopRule(policy, agent.encoder.tokenizer, "<EOU>"))
        assert [one.response for one in generate_replies(responder, prompts, Sampling(7), 3, 2).dialogues] == texts
    assert drawn == ["cpu", "cpu"]


def test_picked_prompts_keep_their_order_and_depend_on_the_seed():
    prompts = [Dialogue([str(i)]) for i in range(30)]
    picked = [int(p.prompt_turns[0]) for p in pick_prompts(prompts, 10, seed=1)]
    assert len(set(picked)) == 10
    assert picked == sorted(picked)
    assert picked != [int(p.prompt_turns[0]) for p in pick_prompts(prompts, 10, seed=2)]
    assert pick_prompts(prompts, None) == pick_prompts(prompts, 99) == prompts


def test_perplexity_reads_whole_references_whatever_the_positions(prompts, tmp_path):
    """A model of 64 positions sees less of the prompt, not less of the reference."""
    tiny.gpt2(n_positions=64).save_pretrained(tmp_path)
    tiny.byte_tokenizer().save_pretrained(tmp_path)
    found = reference_nll(ChatAgent.load(tmp_path), prompts)
    whole = [len(prompt.reference) + 2 for prompt in prompts]  # a space before, the separator behind
    assert found[:, 1].tolist() == [min(length, 63) for length in whole]


def test_the_numbers_of_a_table_are_those_of_float32_whatever_the_replies_were_drawn_in(runs, prompts):
    agents = [ChatAgent.load(folder) for folder in runs]
    replies = generate_replies(agents[0], prompts[:6], agents[0].sampling)
    check_float32(agents, lambda: reference_nll(agents[0], replies.dialogues))


def nearest(training: dict[str, str], *turns: list[str]) -> list[str]:
    known = [Dialogue([turn], reference=reply) for turn, reply in training.items()]
    return nearest_replies([Dialogue(some) for some in turns], known)


def test_the_reply_to_the_nearest_last_turn():
    """Rare words count more than common ones, words that are said twice count twice, and the first of equals is taken."""
    pool = {
        "Where is the pool?": "In the garden.",
        "How much is the pool?": "Free.",
        "Where is the bar?": "On the left.",
    }
    asked = [["where's the bar, please"], ["how much for the pool?"], ["WHERE is the pool?"]]
    last = ["Where is the bar?", "How much is it?"]
    assert nearest(pool, *asked, last) == ["On the left.", "Free.", "In the garden.", "Free."]
    equally_rare = {"cup": "cup", "tea": "tea", "other": "other"}
    assert nearest(equally_rare, ["tea cup"], ["tea tea cup"]) == ["cup", "tea"]


@pytest.mark.slow
def test_an_evaluation_for_which_a_gpu_has_no_memory_is_made_in_smaller_parts(prompts, agent, classifier, monkeypatch):
    """Replies, likelihood of references and acts are those of smaller batches; the next batch begins with these."""
    wanted, intent = generate_replies(agent, prompts, Sampling(7), 0, batch_size=8), Intent(str(classifier))
    nll = reference_nll(agent, prompts, batch_size=4)
    acts, judges = measure(wanted, Judges(intent=intent)).points(), Judges(intent=intent)
    monkeypatch.setattr(agent.limits.sizes, "rows", {})
    fill_gpu(monkeypatch, PackedDecoder, "step", {2})
    found = generate_replies(agent, prompts, Sampling(7), 0, batch_size=8)
    assert [d.response for d in found.dialogues] == [d.response for d in wanted.dialogues]
    calls = fill_gpu(monkeypatch, replies_module, "teacher_forced", {1})
    assert reference_nll(agent, prompts, batch_size=8) == pytest.approx(nll)
    assert len(calls) == 1 + len(prompts) // 8 * 2 + -(-(len(prompts) % 8) // 4)
    fill_gpu(monkeypatch, Intent, "predict", {1})
    assert measure(wanted, judges).points() == pytest.approx(acts, nan_ok=True)
    assert judges.sizes.rows == {"intent": len(prompts) // 2}
    assert agent.limits.sizes.rows == {"generation": 4, "evaluation": 4}
