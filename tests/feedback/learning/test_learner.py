"""The training of a night: its plan, a step against a plain loop, and the state that goes on and is kept on disk."""

import json
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.learning import tokenized_examples
from rlhf_dialog.feedback.learning.learner import Batches, Learner, NightSizes, NightState, _shuffle, rate_by_size
from rlhf_dialog.feedback.learning.losses import balance_weights, kl_baseline
from rlhf_dialog.feedback.learning.night import log_ratios
from rlhf_dialog.feedback.learning.tokenized_examples import TokenizedExample, compute_logprobs_in_batches
from rlhf_dialog.feedback.store.examples import AnswerPair, RatedAnswer, TrainingSet, person_weights
from rlhf_dialog.feedback.store.settings import BotSettings, read_settings
from rlhf_dialog.models.loading import Form, load_causal_lm
from rlhf_dialog.models.policy import num_positions
from rlhf_dialog.models.saved_agent import save_agent
from tests.parts.taught_bots import new_bot, set_keys

TEXTS = ["Why ?", "No no no .", "Who is it ?", "I see the sea .", "How so ?"]
SFT = [Dialogue(["So ?"], reference="So it is ."), Dialogue(["A ."], reference="B")]


def examples(num_answers=5, num_pairs=2, other_weights=None):
    answers = [
        RatedAnswer((f"Hi {i} .",), TEXTS[i % 5], i % 2 == 0, "thumb", "p", "d", i) for i in range(1, num_answers + 1)
    ]
    pairs = [
        AnswerPair((f"Hello {i} .",), TEXTS[i % 5], TEXTS[(i + 1) % 5], "edit", "p", "d", 100 + i)
        for i in range(num_pairs)
    ]
    weights = {one.event: 1.0 for one in (*answers, *pairs)}
    return TrainingSet(answers, pairs, {}, weights | (other_weights or {}), num_answers + num_pairs)


@pytest.fixture(scope="module")
def bot(tmp_path_factory):
    return new_bot(tmp_path_factory.mktemp("learner"))


def learner_of(bot, **keys):
    set_keys(bot, **keys)
    return Learner(bot, read_settings(bot.settings_path))


def train(learner, sft=(), plan=None, training=None):
    training = training or examples()
    night = NightState("", 0, 0, plan or learner.plan(training, len(sft)))
    return learner.train(training, sft, night, lambda *_: None, lambda: None, lambda: False)


@pytest.mark.slow
def test_replies_may_become_as_long_as_the_liked_ones_up_to_twice(bot):
    """The first version says 4 tokens; a liked answer has a token for each letter, the space before it and the end."""
    for text, room, length in (("A.", 24, 4), ("Abc.", 24, 6), ("Abcdefghij.", 24, 8), ("Abcdefghij.", 4, 4)):
        liked, disliked = (
            RatedAnswer(("Hello .",), words, label, "thumb", "ann", "d", event)
            for event, (words, label) in enumerate([(text, True), ("A longer one.", False)])
        )
        learner = learner_of(bot)
        learner.agent.encoder.max_prompt_length = num_positions(learner.policy.lm) - room
        said = learner.lengthen_replies(TrainingSet([liked, disliked], [], {}, {0: 1.0, 1: 1.0}))
        assert learner.agent.sampling.max_new_tokens == learner.agent.settings.max_new_tokens == length
        assert (f"4 -> {length}, as 1 of 1" in said) is (length > 4)


# --- plan ---


def sizes(weight, num_steps_before=10**6, **keys):
    found = NightSizes.of(BotSettings(**keys), weight, num_steps_before)
    return found.steps, found.passes, found.num_sft


def test_the_sizes_of_a_night():
    assert sizes(40, epochs=2, batch_size=10, sft_share=0.5) == (8, 2, 80)
    assert sizes(40, epochs=0.5, batch_size=16, sft_share=0.2) == (1, 0.5, 5)
    assert sizes(40, steps=7, batch_size=10, sft_share=0) == (7, 70 / 40, 0)


def test_a_first_night_is_as_long_as_three_warm_ups():
    keys = {"epochs": 1, "batch_size": 10, "warmup_steps": 20, "sft_share": 0.5}
    assert sizes(40, 0, **keys) == (60, 600 / 40, 600)
    assert sizes(40, 30, **keys) == (30, 300 / 40, 300)
    assert sizes(40, 60, **keys) == (4, 1, 40)
    assert sizes(700, 0, **keys) == (70, 1, 700)
    assert sizes(40, 0, **keys, steps=3)[0] == 3


def test_what_weighs_less_is_in_fewer_passes_and_at_least_in_one():
    """Eight passes: a weight of 1/2 is in four, and what weighs 1/100 in one, in which it counts 8/100."""
    night, weights = NightSizes(steps=1, passes=8, num_sft=0), [1.0] * 5 + [0.5] * 10 + [0.01] * 20
    assert night.step_weights(weights).tolist() == pytest.approx([1] * 15 + [0.08] * 20)
    torch.manual_seed(0)
    seen = Counter(_shuffle(night.frequencies(weights), 100).tolist())
    assert [seen[i] for i in range(35)] == [8] * 5 + [4] * 10 + [1] * 20


def test_six_ratings_beside_900_of_one_other_person_are_in_every_pass():
    """Of two people each has half of the weight, 6; four epochs of 12 are three steps of 16, which see everything."""
    weights = [6 / 900] * 900 + [1.0] * 6
    night = NightSizes.of(BotSettings(), sum(weights), 10**6)
    frequencies = night.frequencies(weights)
    torch.manual_seed(0)
    seen = Counter(_shuffle(frequencies, round(night.passes * frequencies.sum().item())).tolist())
    assert night.steps == 3
    assert [seen[i] for i in range(900, 906)] == [4] * 6
    assert set(seen) == set(range(906))
    assert (night.step_weights(weights) * frequencies).tolist() == pytest.approx(weights)


def test_every_example_is_seen_once_in_each_pass_and_every_step_has_its_share(bot):
    learner = learner_of(bot, epochs=2, batch_size=10, sft_share=0.2, warmup_steps=0)
    plan = learner.plan(examples(30, 10), num_sft=6)
    assert len(plan) == 8
    for kind, size, passes in (("answers", 30, 2), ("pairs", 10, 2)):
        assert Counter(i for step in plan for i in step[kind]) == dict.fromkeys(range(size), passes)
    assert {len(step["answers"]) for step in plan} == {7, 8}
    assert {len(step["pairs"]) for step in plan} == {2, 3}
    seen = Counter(i for step in plan for i in step["sft"])
    assert (sum(seen.values()), set(seen.values())) == (20, {3, 4})


def test_the_order_is_another_one_every_night_and_no_concern_of_others(bot):
    learner = learner_of(bot)
    before = torch.get_rng_state()
    first, second = (learner.plan(examples(30), 0) for _ in range(2))
    assert first != second
    assert torch.equal(torch.get_rng_state(), before)
    assert learner_of(bot).plan(examples(30), 0) == first


@pytest.mark.slow
def test_the_rate_falls_with_the_root_of_the_size_and_one_in_the_settings_comes_first(bot):
    assert rate_by_size(4 * 10**6, False) == pytest.approx(1e-4)
    assert rate_by_size(10**8, True) == pytest.approx(2e-4)
    lm = load_causal_lm(str(bot.agent_folder("0001")), "agent")
    by_size = 2e-4 * (1e6 / sum(x.numel() for x in lm.parameters())) ** 0.5
    for rate, wanted in ((None, by_size), (0.02, 0.02)):
        learner = learner_of(bot, learning_rate=rate, warmup_steps=1)
        train(learner)
        assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(wanted)


# --- a step ---


def test_the_baseline_is_at_least_zero_and_takes_no_gradient():
    ratios = torch.tensor([-3.0, 1.0], requires_grad=True)
    assert kl_baseline(ratios).item() == 0
    above = kl_baseline(ratios + 5)
    assert above.item() == 4
    assert not above.requires_grad


def test_weights_that_balance():
    free = (None, None)
    assert balance_weights(30, 10, *free) == pytest.approx((40 / 60, 40 / 20))
    assert balance_weights(10, 0, *free) == (1.0, 1.0)
    assert balance_weights(1, 99, *free) == pytest.approx((4.0, 100 / 198))
    assert balance_weights(30, 10, 1.0, None) == pytest.approx((1.0, 3.0))
    assert balance_weights(30, 10, None, 1.0) == pytest.approx((10 / 30, 1.0))
    assert balance_weights(30, 10, 2.0, 3.0) == (2.0, 3.0)


WEIGHTS, PAIR_WEIGHTS = (0.5, 1, 1, 1, 1), (0.25, 1)  # of the rows below, in their order


def plain_log_probability(lm, row):
    logprobs = lm(torch.tensor([row.prompt + row.response])).logits[0].log_softmax(-1)
    start = len(row.prompt) - 1
    return sum(logprobs[start + i, token] for i, token in enumerate(row.response))


def test_a_step_is_that_of_a_plain_loop(bot):
    """Loss by loss, row by row, with torch's AdamW: 5 answers (3 liked), 2 pairs and 2 replies of the SFT data.

    An answer weighs .5 and a pair .25, so that the nine rows weigh 7.75.
    """
    keys = {"liked_weight": 2, "desirable_weight": 1.5, "undesirable_weight": 0.5, "dpo_weight": 0.7}
    learner = learner_of(bot, **keys, max_grad_norm=0.3)
    with torch.no_grad():
        for parameter in learner.parameters:  # so that it is not the first version any more
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    step = {"answers": [3, 0, 4, 1, 2], "pairs": [1, 0], "sft": [1, 0]}
    lm, first = (load_causal_lm(str(bot.agent_folder("0001")), "agent", form=Form(packing=False)) for _ in range(2))
    lm.load_state_dict(learner.policy.lm.state_dict())
    training, encoder = examples(other_weights={4: 0.5, 101: 0.25}), learner.encoder
    found = train(learner, sft=SFT, plan=[step], training=training)

    def ratio(row):
        with torch.no_grad():
            known = plain_log_probability(first, row)
        return plain_log_probability(lm, row) - known

    rows = [(encoder.encode_example(training.answers[i])[0], training.answers[i].liked) for i in step["answers"]]
    with torch.no_grad():
        lightest_first = [rows[0], *rows[1:]]  # that of event 4 is the first one anyway
        mixed = [
            weight * ratio(TokenizedExample(row.prompt, lightest_first[i - 1][0].response))
            for i, ((row, _), weight) in enumerate(zip(lightest_first, WEIGHTS, strict=True))
        ]
    baseline = max(0.0, sum(mixed).item() / sum(WEIGHTS))
    assert found["kl_baseline"] == pytest.approx(baseline, abs=1e-4)
    assert Batches(learner, training, SFT, [step])._baseline([3]) == 0  # a single prompt has no answer of another one
    kto = [
        weight * 1.5 * (1 - torch.sigmoid(0.5 * (ratio(row) - baseline)))
        if liked
        else weight * 0.5 * (1 - torch.sigmoid(0.5 * (baseline - ratio(row))))
        for (row, liked), weight in zip(rows, WEIGHTS, strict=True)
    ]
    pairs = [encoder.encode_example(training.pairs[i]) for i in step["pairs"]]
    dpo = [
        -weight * torch.log(torch.sigmoid(0.5 * (ratio(chosen) - ratio(rejected))))
        for (chosen, rejected), weight in zip(pairs, PAIR_WEIGHTS, strict=True)
    ]
    nll, liked, chosen = (
        sum(-weight * plain_log_probability(lm, row) / len(row.response) for row, weight in some)
        for some in (
            [(encoder.encode_reply(one), 1) for one in SFT],
            [(row, weight) for (row, liked), weight in zip(rows, WEIGHTS, strict=True) if liked],
            [(one, weight) for (one, _), weight in zip(pairs, PAIR_WEIGHTS, strict=True)],
        )
    )
    loss = (sum(kto) + 2 * liked + 0.7 * (sum(dpo) + 2 * chosen) + nll) / 7.75
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-4)
    optimizer = torch.optim.AdamW(lm.parameters(), lr=0.003 / 3, weight_decay=0, eps=1e-5)  # of three steps of warm-up
    loss.backward()
    assert found["grad_norm"] == pytest.approx(torch.nn.utils.clip_grad_norm_(lm.parameters(), 0.3).item(), rel=1e-3)
    optimizer.step()
    wanted = dict(lm.named_parameters())
    for name, own in learner.policy.lm.named_parameters():
        torch.testing.assert_close(own, wanted[name], atol=1e-4, rtol=1e-3)


def liar_among_four(number):
    """Four people with two ratings each, of which one is liked, and a liar who dislikes so many."""
    people = [*(f"p{i // 2}" for i in range(8)), *["liar"] * number]
    rated = [
        RatedAnswer((f"Hi {i} .",), f"No {i} .", i < 8 and i % 2 == 0, "thumb", person, "d", i)
        for i, person in enumerate(people)
    ]
    weights = person_weights(rated, BotSettings(person_cap=0.2))
    return TrainingSet(rated, [], {}, weights, len(rated))


def shares_of_the_four(bot, number, monkeypatch):
    """The number of steps, the balance, and what part of all losses of a night and of z_ref is that of the four people.

    The loss of each of their rows is 1, the liar's are 0; and so are the log-ratios, by the prompt and by the answer.
    """
    training, learner = (
        liar_among_four(number),
        learner_of(bot, epochs=8, desirable_weight=None, undesirable_weight=None),
    )
    monkeypatch.setattr(learner.reference, "add", lambda _: None)
    plan = learner.plan(training, 0)
    batches = Batches(learner, training, (), plan)
    theirs = {tuple(ids) for i in range(8) for ids in (batches.rows[str(i)].prompt, batches.rows[str(i)].response)}

    def is_theirs(names):
        return torch.tensor([float(int(name) < 8) for name in names]), torch.zeros(len(names))

    def log_ratios(of):
        def compute(policy, rows, *_):
            return torch.tensor([float(tuple(getattr(row, of)) in theirs) for row in rows]) * (policy is learner.policy)

        return compute

    monkeypatch.setattr(batches, "_log_ratios", is_theirs)
    monkeypatch.setattr("rlhf_dialog.feedback.learning.losses.kto_losses", lambda log_ratios, *_: log_ratios)
    found = {"steps": len(plan), "balance": batches.balance}
    for name, of in (("z_ref by prompts", "prompt"), ("z_ref by answers", "response")):
        monkeypatch.setattr(tokenized_examples, "compute_logprobs_in_batches", log_ratios(of))
        found[name] = sum(batches._baseline(step["answers"]) for step in plan) / len(plan)
    losses = [part.sum().item() / len(step["answers"]) for step in plan for _, part, _ in batches.losses(step)]
    return found | {"loss": sum(losses) / batches.mean_weight / len(plan)}


@pytest.mark.slow
def test_a_person_who_rates_ten_times_as_much_changes_nothing_for_the_others(bot, monkeypatch):
    """Nine of ten ratings are the liar's, then 99 of 100: of five people the four have four fifths of everything."""
    found = [shares_of_the_four(bot, number, monkeypatch) for number in (72, 720)]
    for one in found:
        assert one["steps"] == 10
        assert one["balance"] == pytest.approx((10 / 8, 10 / 12))  # 4 of 10 by weight are liked
        assert [one["loss"], one["z_ref by prompts"]] == pytest.approx([0.8, 0.8], abs=0.01)
    assert found[0]["z_ref by answers"] == pytest.approx(found[1]["z_ref by answers"], abs=0.05)


@pytest.mark.slow
def test_microbatches_change_nothing(bot):
    whole, parts = learner_of(bot), learner_of(bot, per_device_microbatch_size=3)
    found = [train(learner, sft=SFT) for learner in (whole, parts)]
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    for own, wanted in zip(parts.parameters, whole.parameters, strict=True):
        torch.testing.assert_close(own, wanted, atol=1e-5, rtol=1e-3)


# --- state ---


def saved(learner, folder):
    folder.mkdir()
    learner.save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_a_state_comes_back_to_the_bit(bot, tmp_path):
    learner = learner_of(bot)
    train(learner)
    learner.consumed, learner.num_nights = frozenset({3, 5}), 1
    files = saved(learner, tmp_path / "first")
    assert {name.rpartition(".")[2] for name in files} == {"safetensors", "json"}
    again = learner_of(bot)
    again.load(tmp_path / "first")
    assert (again.num_steps, again.num_nights, again.consumed) == (learner.num_steps, 1, {3, 5})
    assert saved(again, tmp_path / "second") == files
    both = [(train(one), saved(one, tmp_path / name)) for one, name in ((learner, "third"), (again, "fourth"))]
    assert both[0] == both[1]


def test_damaged_and_newer_states_are_refused(bot, tmp_path):
    learner = learner_of(bot)
    learner.save(tmp_path)
    state = json.loads((tmp_path / "learner.json").read_text())
    (tmp_path / "learner.json").write_text(json.dumps(state | {"format_version": 9}))
    with pytest.raises(UserError, match="has format version 9, but this program reads up to 1; update"):
        learner.load(tmp_path)
    (tmp_path / "learner.json").write_text(json.dumps(state))
    tensors = load_file(tmp_path / "weights.safetensors")
    save_file({name: x + 1 for name, x in tensors.items()}, tmp_path / "weights.safetensors")
    with pytest.raises(UserError, match=r"weights.safetensors has changed .*`feedback rollback`"):
        learner.load(tmp_path)
    (tmp_path / "learner.json").write_text("{")
    with pytest.raises(UserError, match="is damaged or does not fit"):
        learner.load(tmp_path)


# --- adapters ---


@pytest.mark.slow
def test_adapters_are_trained_and_merged_only_in_the_agent(bot, tmp_path):
    learner = learner_of(bot, use_lora=True, lora_r=2)
    before = load_file(bot.agent_folder("0001") / "model.safetensors")
    row = learner.encoder.encode_answer(["Hi ."], "Why ?")
    first = compute_logprobs_in_batches(learner.reference_policy, [row], 256, 1)
    assert torch.equal(compute_logprobs_in_batches(learner.policy, [row], 256, 1), first)
    train(learner)
    after = compute_logprobs_in_batches(learner.reference_policy, [row], 256, 1)
    assert torch.equal(after, first)  # the base is as it was
    learner.save(tmp_path)
    assert all(".lora_" in name for name in load_file(tmp_path / "adapter.safetensors"))
    assert not (tmp_path / "weights.safetensors").exists()
    save_agent(tmp_path / "agent", learner.policy, learner.encoder.encoder.tokenizer, learner.agent.settings)
    merged = load_file(tmp_path / "agent" / "model.safetensors")
    assert merged.keys() == before.keys()
    assert any(not torch.equal(merged[name], before[name]) for name in merged)
    again = learner_of(bot, use_lora=True, lora_r=2)
    again.load(tmp_path)
    assert all(map(torch.equal, again.parameters, learner.parameters))
    with pytest.raises(UserError, match=r"use_lora: False, but .* was trained with adapters"):
        learner_of(bot).load(tmp_path)


@pytest.mark.parametrize("use_lora", [False, True])
def test_the_gate_reads_log_ratios_of_float32(tmp_path, use_lora):
    """Those of a night in bf16 are those of a night in float32 with the same weights."""
    found, bot = {}, new_bot(tmp_path)
    for precision in ("fp32", "bf16"):
        learner = learner_of(bot, precision=precision, use_lora=use_lora, lora_r=2)
        torch.manual_seed(0)
        for parameter in learner.parameters:
            parameter.data += 0.02 * torch.randn_like(parameter)
        found[precision] = log_ratios(learner, learner.policy, examples())
        assert learner.policy.use_amp == learner.reference_policy.use_amp == (precision == "bf16")
    assert found["bf16"] == pytest.approx(found["fp32"], abs=1e-4)
    assert max(map(abs, found["fp32"].values())) > 0.1
