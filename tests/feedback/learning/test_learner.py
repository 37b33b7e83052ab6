"""The training of a night: its plan, a step against a plain loop, and the state that goes on and is kept on disk."""

import json
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.learning.learner import Batches, Learner, NightState, night_sizes, rate_by_size
from rlhf_dialog.feedback.learning.losses import balance_weights, kl_baseline
from rlhf_dialog.feedback.learning.night import log_ratios
from rlhf_dialog.feedback.learning.tokenized_examples import TokenizedExample, compute_logprobs_in_batches
from rlhf_dialog.feedback.store.examples import AnswerPair, RatedAnswer, TrainingSet
from rlhf_dialog.feedback.store.settings import BotSettings, read_settings
from rlhf_dialog.models.loading import Form, load_causal_lm
from tests.parts.taught_bots import new_bot, set_keys

TEXTS = ["Why ?", "No no no .", "Who is it ?", "I see the sea .", "How so ?"]
SFT = [Dialogue(["So ?"], reference="So it is ."), Dialogue(["A ."], reference="B")]


def examples(num_answers=5, num_pairs=2):
    answers = [
        RatedAnswer((f"Hi {i} .",), TEXTS[i % 5], i % 2 == 0, "thumb", "p", "d", i) for i in range(1, num_answers + 1)
    ]
    pairs = [
        AnswerPair((f"Hello {i} .",), TEXTS[i % 5], TEXTS[(i + 1) % 5], "edit", "p", "d", 100 + i)
        for i in range(num_pairs)
    ]
    return TrainingSet(answers, pairs, {}, num_answers + num_pairs)


@pytest.fixture(scope="module")
def bot(tmp_path_factory):
    return new_bot(tmp_path_factory.mktemp("learner"))


def learner_of(bot, **keys):
    set_keys(bot, **keys)
    return Learner(bot, read_settings(bot.settings_path))


def train(learner, sft=(), plan=None):
    training = examples()
    night = NightState("", 0, 0, plan or learner.plan(training, len(sft)))
    return learner.train(training, sft, night, lambda *_: None, lambda: None)


# --- plan ---


def test_the_sizes_of_a_night():
    assert night_sizes(BotSettings(epochs=2, batch_size=10, sft_share=0.5), 40) == (80, 8, 80)
    assert night_sizes(BotSettings(epochs=0.5, batch_size=16, sft_share=0.2), 40) == (20, 1, 5)
    assert night_sizes(BotSettings(steps=7, batch_size=10, sft_share=0), 40) == (70, 7, 0)


def test_every_example_is_seen_once_in_each_pass_and_every_step_has_its_share(bot):
    learner = learner_of(bot, epochs=2, batch_size=10, sft_share=0.2)
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


def plain_log_probability(lm, row):
    logprobs = lm(torch.tensor([row.prompt + row.response])).logits[0].log_softmax(-1)
    start = len(row.prompt) - 1
    return sum(logprobs[start + i, token] for i, token in enumerate(row.response))


def test_a_step_is_that_of_a_plain_loop(bot):
    """Loss by loss, row by row, with torch's AdamW: 5 answers (3 liked), 2 pairs and 2 replies of the SFT data."""
    keys = {"liked_weight": 2, "desirable_weight": 1.5, "undesirable_weight": 0.5, "dpo_weight": 0.7}
    learner = learner_of(bot, **keys, max_grad_norm=0.3)
    with torch.no_grad():
        for parameter in learner.parameters:  # so that it is not the first version any more
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    step = {"answers": [3, 0, 4, 1, 2], "pairs": [1, 0], "sft": [1, 0]}
    lm, first = (load_causal_lm(str(bot.agent_folder("0001")), "agent", form=Form(packing=False)) for _ in range(2))
    lm.load_state_dict(learner.policy.lm.state_dict())
    found = train(learner, sft=SFT, plan=[step])
    training, encoder = examples(), learner.encoder

    def ratio(row):
        with torch.no_grad():
            known = plain_log_probability(first, row)
        return plain_log_probability(lm, row) - known

    rows = [(encoder.encode_example(training.answers[i])[0], training.answers[i].liked) for i in step["answers"]]
    with torch.no_grad():
        mixed = [ratio(TokenizedExample(rows[i][0].prompt, rows[i - 1][0].response)) for i in range(5)]
    baseline = max(0.0, sum(mixed).item() / 5)
    assert found["kl_baseline"] == pytest.approx(baseline, abs=1e-4)
    assert Batches(learner, training, SFT)._baseline([3]) == 0  # a single prompt has no answer of another one
    kto = [
        1.5 * (1 - torch.sigmoid(0.5 * (ratio(row) - baseline)))
        if liked
        else 0.5 * (1 - torch.sigmoid(0.5 * (baseline - ratio(row))))
        for row, liked in rows
    ]
    pairs = [encoder.encode_example(training.pairs[i]) for i in step["pairs"]]
    dpo = [-torch.log(torch.sigmoid(0.5 * (ratio(chosen) - ratio(rejected)))) for chosen, rejected in pairs]
    replies = [encoder.encode_reply(one) for one in SFT]
    nll, liked, chosen = (
        sum(-plain_log_probability(lm, row) / len(row.response) for row in some)
        for some in (replies, [row for row, liked in rows if liked], [one for one, _ in pairs])
    )
    loss = (sum(kto) + 2 * liked + 0.7 * (sum(dpo) + 2 * chosen) + nll) / 9
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-4)
    optimizer = torch.optim.AdamW(lm.parameters(), lr=0.003 / 3, weight_decay=0, eps=1e-5)  # of three steps of warm-up
    loss.backward()
    assert found["grad_norm"] == pytest.approx(torch.nn.utils.clip_grad_norm_(lm.parameters(), 0.3).item(), rel=1e-3)
    optimizer.step()
    wanted = dict(lm.named_parameters())
    for name, own in learner.policy.lm.named_parameters():
        torch.testing.assert_close(own, wanted[name], atol=1e-4, rtol=1e-3)


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
    learner.export(tmp_path / "agent")
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
