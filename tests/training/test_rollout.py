"""From prompts to a scored rollout: the text that rewards see, and tensors against slow recomputation."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from rlhf_dialog.data.prompt_ids import PromptEncoder
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.models.generation import GenerationLimits, Responder, Responses, Sampling, StopRule
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.packing import KeyValues
from rlhf_dialog.models.policy import Policy, run_rows
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import RewardError, Scorer
from rlhf_dialog.training.episodes import deal_prompts
from rlhf_dialog.training.rollout import collect_rollout, drop_unscored
from tests.parts.rollouts import EOS, EOU, PAD, PROMPTS, Recording, ids_of, world
from tests.parts.tiny import byte_tokenizer
from tests.parts.trainers import PROMPTS as PROMPTS_OF_TRAINER
from tests.parts.trainers import Holes, make_trainer, parameters


def roll(models, encoder, sampling=None, reward=None, prompts=PROMPTS, seed=0, **options):
    torch.manual_seed(seed)
    stop = StopRule(models.policy, models.tokenizer, "<EOU>")
    sampling = sampling or Sampling(max_new_tokens=8, temperature=0.8)
    limits = {name: options.pop(name) for name in ("rows_at_once", "prompts_at_once") if name in options}
    responder = Responder(models.policy, encoder, sampling, stop, GenerationLimits(**limits))
    return collect_rollout(deal_prompts(prompts), responder, Scorer(reward or Recording(), **options), models)


class Scripted(nn.Module):
    """Writes the given ids (B, T), then nothing else."""

    device = torch.device("cpu")
    generation_config, config = None, PretrainedConfig(vocab_size=259)

    def __init__(self, rows):
        super().__init__()
        self.rows = torch.tensor(rows)

    def forward(self, input_ids, attention_mask, past_key_values=None, use_cache=None):
        wanted = torch.zeros(input_ids.shape, dtype=torch.long)
        if use_cache:
            step = past_key_values or 0
            wanted[:, -1] = self.rows[:, step]
            past_key_values = step + 1
        logits = nn.functional.one_hot(wanted, 259) * 80.0
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)


def scripted(*texts, tokenizer=None):
    """Models that answer with these lists of ids and texts, filled up with letters."""
    tokenizer = tokenizer or byte_tokenizer()
    rows = [[i for part in text for i in ([part] if isinstance(part, int) else ids_of(part))] for text in texts]
    width = max(map(len, rows))
    policy = Policy(Scripted([row + [5] * (width - len(row)) for row in rows]))
    return Models(policy, None, policy, tokenizer), PromptEncoder(tokenizer, "<EOU>", 64), width


def test_the_text_that_rewards_see():
    """Cut at the first separator, special tokens removed, stripped."""
    models, encoder, width = scripted(
        [" Yes , please . ", EOU], ["  ", PAD, "No", PAD, " <", EOS], ["abcdefghijklmnopqr"]
    )
    reward = Recording()
    rollout = roll(models, encoder, Sampling(width, greedy=True), reward)
    assert [dialogue.response for dialogue in reward.seen] == ["Yes , please .", "No <", "abcdefghijklmnopqr"]
    assert [dialogue.truncated for dialogue in reward.seen] == [False, False, True]
    assert rollout.dialogues == reward.seen
    kept = [(d.prompt_turns, d.reference, d.act, d.meta) for d in reward.seen]
    assert kept == [(d.prompt_turns, d.reference, d.act, d.meta) for d in PROMPTS]
    assert all(d.response == "" for d in PROMPTS)


def test_the_text_without_a_separator_token():
    tokenizer = byte_tokenizer(separator_token=False)
    models, encoder, width = scripted([" Yes . <EOU> more"], ["<EOU> x"], ["abcdefghijklm <EO"], tokenizer=tokenizer)
    reward = Recording()
    rollout = roll(models, encoder, Sampling(width, greedy=True), reward)
    assert [dialogue.response for dialogue in reward.seen] == ["Yes .", "", "abcdefghijklm <EO"]
    assert rollout.response_mask.sum(dim=1).tolist() == [12, 5, width]
    assert rollout.num_tokens == 12 + 5 + width


def test_the_text_of_a_reply_by_hand():
    special, text = (PromptEncoder(byte_tokenizer(flag), "<EOU>", 64) for flag in (True, False))
    for encoder in (special, text):
        assert encoder.reply_text([*ids_of(" a . <EOU> b <EOU>"), EOS]) == "a ."
        assert encoder.reply_text([PAD, *ids_of("a"), EOS, *ids_of("b")]) == "ab"
        assert encoder.reply_text([]) == ""
    assert special.reply_text([*ids_of("a "), EOU, *ids_of("b")]) == "a"
    assert special.reply_text([EOU, *ids_of("b")]) == ""
    # the separator may be a named one; Llama 3 has 256 special tokens, and all but two have no name
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<EOU>"]})
    tokenizer.backend_tokenizer.add_special_tokens(["<end>"])
    end, encoder = tokenizer.get_vocab()["<end>"], PromptEncoder(tokenizer, "<EOU>", 64)
    assert encoder.reply_text([*ids_of("a "), end, EOU, *ids_of("b")]) == "a"
    assert encoder.reply_text([*ids_of("ab"), end]) == "ab"


def test_a_reply_leaves_out_what_does_not_count():
    encoder = PromptEncoder(byte_tokenizer(), "<EOU>", 64)
    ids, mask = torch.tensor([ids_of("abc")]), torch.tensor([[True, False, True]])
    responses = Responses(TokenBatch(ids, mask, ids, mask), torch.tensor([True]), ids, ids)
    (reply,) = Responder(None, encoder, Sampling(), None).read(responses)
    assert (reply.text, reply.ids, reply.truncated) == ("ac", ids_of("ac"), True)


class Fixed(BaseReward):
    def __init__(self, number):
        self.number = number

    def __call__(self, dialogues):
        return [self.number] * len(dialogues)


def test_scores_keep_their_order_and_truncation_has_its_price():
    models, encoder, width = scripted(["abcd"], ["ab", EOS], ["abcd"])
    rollout = roll(models, encoder, Sampling(width, greedy=True), truncation_penalty=1.5)
    assert rollout.truncated.tolist() == [True, False, True]
    assert rollout.scores.tolist() == [8.5, 20.0, 28.5]
    assert rollout.scores.dtype == torch.float32
    assert rollout.reward_scores.total == [10.0, 20.0, 30.0]  # what the reward said, before the price
    assert rollout.reward_scores.parts["recording"].raw == [10.0, 20.0, 30.0]
    assert roll(models, encoder, Sampling(width, greedy=True)).scores.tolist() == [10.0, 20.0, 30.0]
    # subtracted before rounding: 2^24 + 1 is not a number of 32 bits, 2^24 is
    rollout = roll(models, encoder, Sampling(width, greedy=True), Fixed(2.0**24 + 1), truncation_penalty=1.0)
    assert rollout.scores[rollout.truncated].tolist() == [2.0**24] * 2


def test_scores_are_as_precise_as_the_log_probabilities():
    models, encoder = world()
    models.policy.double()
    models.ref_policy.double()
    assert roll(models, encoder, reward=Fixed(0.1)).scores.tolist() == [0.1] * 3  # in 32 bits, another number


def test_without_a_value_head_the_values_are_zeros():
    models, encoder = world(value_head=False)
    rollout = roll(models, encoder)
    assert rollout.values.shape == rollout.logprobs.shape
    assert not rollout.values.any()


def test_sizes_bound_each_forward_pass_and_the_cache(monkeypatch):
    """Reading the prompts and the teacher-forced passes; the policy itself has none of these."""
    models, encoder = world(critic=True)
    counted = {"policy": models.policy.lm, "reference": models.ref_policy.lm, "critic": models.critic.trunk}
    rows: dict[str, list[int]] = {name: [] for name in counted}
    sizes = []

    def counting(module, packed, *rest):
        (name,) = (name for name, lm in counted.items() if module in (lm, lm.base_model))
        rows[name].append(packed.num_rows)
        return run_rows(module, packed, *rest)

    class Counting(KeyValues):
        def __init__(self, lengths, num_new, device):
            sizes.append(len(lengths))
            super().__init__(lengths, num_new, device)

    monkeypatch.setattr("rlhf_dialog.models.policy.run_rows", counting)
    monkeypatch.setattr("rlhf_dialog.models.generation.KeyValues", Counting)
    roll(models, encoder, prompts_at_once=2)
    assert rows == {"policy": [2, 1], "reference": [2, 1], "critic": [2, 1]}
    assert sizes == [3]
    roll(models, encoder, rows_at_once=2)
    assert sizes == [3, 2, 1]


def test_seconds_of_rollout_and_reward(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("rlhf_dialog.training.rollout.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    models, encoder = world()
    assert roll(models, encoder).clock.seconds == {"rollout": 5, "generation": 1, "reference": 1, "reward": 1}


def test_a_sum_that_is_no_32_bit_number_names_the_dialogue():
    models, encoder = world()
    with pytest.raises(RewardError, match=r"score 1e\+39 of dialogue 0"):
        roll(models, encoder, reward=Fixed(1e39), skip_unscored=True)


def test_a_rollout_of_some_rows_by_hand():
    models, encoder = world()
    whole = roll(models, encoder, Sampling(max_new_tokens=6, top_k=9))
    part = whole.select([2, 0])
    assert [d.meta["index"] for d in part.dialogues] == [2, 0]
    assert (
        part.scores.tolist() == part.reward_scores.total == part.reward_scores.parts["recording"].weighted == [30, 10]
    )
    names = ["truncated", "logprobs", "ref_logprobs", "entropy", "values", "kl_full", "ref_support_mass"]
    parts = ["prompt_ids", "prompt_mask", "response_ids", "response_mask", "support"]
    pairs = {name: (getattr(whole, name), getattr(part, name)) for name in names}
    pairs |= {name: (getattr(whole.tokens, name), getattr(part.tokens, name)) for name in parts}
    for name, (before, after) in pairs.items():
        assert torch.equal(torch.stack([before[2], before[0]]), after), name
    assert (len(part), part.num_dropped, part.num_generated) == (2, 1, whole.num_tokens)
    assert (len(whole), whole.num_dropped) == (3, 0)


@pytest.mark.parametrize(
    ("missing", "group", "kept"), [([], 1, [0, 1, 2, 3]), ([1], 1, [0, 2, 3]), ([1], 2, [2, 3]), ([0, 3], 2, [])]
)
def test_who_is_dropped(missing, group, kept):
    models, encoder = world()
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[2], PROMPTS[0]]
    rollout = roll(models, encoder, reward=Holes(missing), prompts=prompts, skip_unscored=True)
    assert rollout.scores.isnan().nonzero().flatten().tolist() == missing
    found = drop_unscored(rollout, group)
    assert [d.prompt_turns for d in found.dialogues] == [prompts[i].prompt_turns for i in kept]
    assert torch.equal(found.tokens.response_ids, rollout.tokens.response_ids[kept])
    assert (len(found), found.num_dropped) == (len(kept), 4 - len(kept))


# -- the trainer: scores that are missing, and what their episodes count


@pytest.mark.parametrize("value", [None, math.nan])
def test_an_episode_without_a_score_stops_or_is_skipped(value, caplog):
    with pytest.raises(
        UserError, match=r"reward 'holes' gave (None|nan), which is not .* for dialogue 1 with the resp"
    ):
        make_trainer(Holes([1, 4], value)).step()
    trainer = make_trainer(Holes([1, 4], value), on_reward_error="skip")
    wanted = make_trainer().sampler.take(6)
    metrics, rollout = trainer.step(), trainer.rollout
    assert [d.meta["index"] for d in rollout.dialogues] == [wanted[i] for i in (0, 2, 3, 5)]
    assert rollout.scores.tolist() == [-1.5, 2.5, -0.5, -1.5]
    assert metrics["objective/score"] == metrics["reward/holes"] == pytest.approx(-0.25)
    assert metrics["response/unscored"] == 2
    assert rollout.reward_scores.total == rollout.reward_scores.parts["holes"].raw == [-1.5, 2.5, -0.5, -1.5]
    assert "reward 'holes' gave no score for 2 of 6 dialogues" in caplog.text
    lengths = {name: len(x) for name, x in vars(rollout).items() if isinstance(x, (list, torch.Tensor))}
    assert set(lengths.values()) == {4}, lengths
    expected = make_trainer().step()
    assert expected["response/unscored"] == 0
    # dropped tokens and episodes were generated all the same
    assert metrics["time_steps"] == expected["time_steps"] > rollout.num_tokens
    assert metrics["episodes"] == expected["episodes"] == 6
    assert metrics["response/length"] == rollout.num_tokens / 4


@pytest.mark.parametrize(
    ("estimator", "places", "kept"),
    [
        ("grpo", [0, 7], [3, 4, 5]),  # one of three groups of three is whole
        ("rloo", [4], [0, 1, 2, 6, 7, 8]),
        ("reinforce_pp", [0, 7], [1, 2, 3, 4, 5, 6, 8]),
    ],
)
def test_baselines_need_whole_groups(estimator, places, kept):
    keys = {"num_responses_per_prompt": 3, "rollout_batch_size": 9, "on_reward_error": "skip"}
    trainer = make_trainer(Holes(places), advantage_estimator=estimator, **keys, use_adv_normalize=False)
    wanted = make_trainer().sampler.take(3)
    metrics = trainer.step()
    assert [d.meta["index"] for d in trainer.rollout.dialogues] == [wanted[i // 3] for i in kept]
    assert trainer.rollout.advantages.isfinite().all()
    assert metrics["response/unscored"] == 9 - len(kept)


@pytest.mark.parametrize(("estimator", "places"), [("gae", range(6)), ("grpo", [0, 3])])
def test_an_iteration_without_any_score_stops_the_run(estimator, places):
    keys = {"advantage_estimator": estimator, "num_responses_per_prompt": 3, "on_reward_error": "skip"}
    trainer = make_trainer(Holes(places), **keys)
    before = parameters(trainer.models.policy)
    with pytest.raises(
        RunStopped, match=r"iteration 1: all 6 episodes are dropped, because the reward 'holes' gave .* no score"
    ):
        trainer.step()
    assert all(torch.equal(p, before[name]) for name, p in trainer.models.policy.named_parameters())


def test_the_first_rollout_counts_prompts_that_lose_part_of_their_newest_turn(caplog):
    trainer = make_trainer(max_prompt_length=3)
    trainer.step()
    trainer.step()
    sizes = [
        len(trainer.responder.encoder._encode(f"{prompt.prompt_turns[-1]} <EOU>")) for prompt in PROMPTS_OF_TRAINER
    ]
    assert set(sizes) == {4}
    (line,) = [line for line in caplog.messages if "lose the beginning of their newest turn" in line]
    assert line.startswith("6 of 6 prompts")
    assert "max_prompt_length is 3, and 4 would do" in line
