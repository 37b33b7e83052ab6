"""From prompts to a scored rollout: the text that rewards see, and tensors against slow recomputation."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptEncoder
from rlhf_dialog.models.generation import GenerationLimits, Responses, Sampling, StopRule
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.packing import KeyValues
from rlhf_dialog.models.policy import Policy, run_rows
from rlhf_dialog.models.responder import Responder
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import RewardError, Scorer, ScoringRules
from rlhf_dialog.training.checks import prompt_names
from rlhf_dialog.training.episodes import PromptList
from rlhf_dialog.training.rollout import collect_rollout, drop_unscored
from tests.parts.rollouts import EOS, EOU, PAD, PROMPTS, Recording, ids_of, slow, world
from tests.parts.tiny import byte_tokenizer, gpt2


def roll(models, encoder, sampling=None, reward=None, prompts=PROMPTS, seed=0, **options):
    torch.manual_seed(seed)
    stop = StopRule(models.policy, models.tokenizer, "<EOU>")
    sampling = sampling or Sampling(max_new_tokens=8, temperature=0.8)
    limits = {name: options.pop(name) for name in ("rows_at_once", "prompts_at_once") if name in options}
    speaker = Responder(models.policy, encoder, sampling, stop, GenerationLimits(**limits))
    return collect_rollout(PromptList().deal(prompts), speaker, Scorer(reward or Recording(), **options), models)


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


def test_a_separator_among_the_named_special_tokens_is_cut_at():
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<EOU>"]})
    assert EOU in tokenizer.all_special_ids
    assert PromptEncoder(tokenizer, "<EOU>", 64).reply_text([*ids_of("a "), EOU, *ids_of("b")]) == "a"


def test_special_tokens_without_a_name_are_removed():
    """Llama 3's tokenizer holds 256 special tokens, and all but two stand under no name (eos_token, pad_token, ...)."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.add_special_tokens(["<end>"])
    end = tokenizer.get_vocab()["<end>"]
    assert tokenizer.decode([end], skip_special_tokens=True) == ""
    assert PromptEncoder(tokenizer, "<EOU>", 64).reply_text([*ids_of("ab"), end]) == "ab"


def test_a_reply_leaves_out_what_does_not_count():
    encoder = PromptEncoder(byte_tokenizer(), "<EOU>", 64)
    ids, mask = torch.tensor([ids_of("abc")]), torch.tensor([[True, False, True]])
    responses = Responses(TokenBatch(ids, mask, ids, mask), torch.tensor([True]), ids, ids)
    (reply,) = Responder(None, encoder, Sampling(), None).read(responses)
    assert (reply.text, reply.ids, reply.truncated) == ("ac", ids_of("ac"), True)


def test_scores_keep_their_order_and_truncation_has_its_price():
    models, encoder, width = scripted(["abcd"], ["ab", EOS], ["abcd"])
    rollout = roll(models, encoder, Sampling(width, greedy=True), truncation_penalty=1.5)
    assert rollout.truncated.tolist() == [True, False, True]
    assert rollout.scores.tolist() == [8.5, 20.0, 28.5]
    assert rollout.scores.dtype == torch.float32
    assert rollout.reward_scores.total == [10.0, 20.0, 30.0]  # what the reward said, before the price
    assert rollout.reward_scores.parts["recording"].raw == [10.0, 20.0, 30.0]
    assert roll(models, encoder, Sampling(width, greedy=True)).scores.tolist() == [10.0, 20.0, 30.0]


def test_the_price_of_truncation_is_subtracted_before_rounding():
    """2^24 + 1 is not a number of 32 bits, 2^24 is."""

    class Large(BaseReward):
        def __call__(self, dialogues):
            return [2.0**24 + 1] * len(dialogues)

    models, encoder, width = scripted(["abcd"], ["ab", EOS], ["abcd"])
    rollout = roll(models, encoder, Sampling(width, greedy=True), Large(), truncation_penalty=1.0)
    assert rollout.scores[rollout.truncated].tolist() == [2.0**24] * 2


def test_scores_are_as_precise_as_the_log_probabilities(monkeypatch):
    class Tenth(BaseReward):
        def __call__(self, dialogues):
            return [0.1] * len(dialogues)

    models, encoder = world()
    assert roll(models, encoder, reward=Tenth()).scores.dtype == torch.float32
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # what the package keeps in float32
    for model in (models.policy, models.ref_policy):
        model.double()
    rollout = roll(models, encoder, reward=Tenth())
    assert rollout.logprobs.dtype == rollout.scores.dtype == torch.float64
    assert rollout.scores.tolist() == [0.1] * len(rollout)
    charged = roll(models, encoder, reward=Tenth(), truncation_penalty=0.7)
    assert charged.truncated.any()
    assert set(charged.scores[charged.truncated].tolist()) == {0.1 - 0.7}  # of 64 bits: in 32, .7 is larger by 1e-8


def test_encoded_prompts():
    models, encoder = world()
    tokens = Responder(models.policy, encoder, Sampling(), None).encode([prompt.prompt_turns for prompt in PROMPTS])
    ids, mask = tokens.prompt_ids, tokens.prompt_mask
    for row, prompt in enumerate(PROMPTS):
        assert ids[row][mask[row]].tolist() == encoder.encode_prompt(prompt.prompt_turns)
        assert (~mask[row]).tolist() == sorted((~mask[row]).tolist(), reverse=True)  # padding on the left
    assert ids[~mask].unique().tolist() == [PAD]


@torch.no_grad()
@pytest.mark.parametrize("filters", [{}, {"top_k": 12}, {"top_p": 0.7}])
def test_tensors_equal_a_slow_recomputation(filters):
    models, encoder = world(ref_seed=5)
    rollout = roll(models, encoder, Sampling(max_new_tokens=5, temperature=0.8, **filters), prompts_at_once=2)
    assert len(rollout) == 3
    assert (
        (rollout.kl_full is None)
        == (rollout.ref_support_mass is None)
        == (rollout.tokens.support is None)
        == (not filters)
    )
    for b, t in rollout.response_mask.nonzero().tolist():
        ours, theirs = (slow(models, rollout, 0.8, m, b, t) for m in (models.policy, models.ref_policy))
        kept = (
            torch.arange(259)
            if not filters
            else torch.tensor([i for i in rollout.tokens.support[b, t].tolist() if i >= 0])
        )
        token = rollout.tokens.response_ids[b, t]
        p, q = ours[kept].log_softmax(0), theirs[kept].log_softmax(0)
        where = (kept == token).nonzero().item()
        expected = {"logprobs": p[where], "ref_logprobs": q[where], "entropy": -(p.exp() * p).sum()}
        if filters:
            expected |= {"kl_full": (ours.exp() * (ours - theirs)).sum(), "ref_support_mass": theirs[kept].exp().sum()}
        for name, value in expected.items():
            assert getattr(rollout, name)[b, t].item() == pytest.approx(value.item(), abs=1e-4), name
    assert (rollout.logprobs - rollout.ref_logprobs)[rollout.response_mask].abs().max() > 0.5
    shape = rollout.tokens.response_ids.shape
    for name in ("response_mask", "logprobs", "ref_logprobs", "entropy", "values"):
        assert getattr(rollout, name).shape == shape
        assert not getattr(rollout, name).requires_grad


def test_where_the_values_come_from():
    for options, module in (
        ({"critic": True, "value_head": False}, "critic"),
        ({}, "policy"),
        ({"critic": True}, "critic"),
    ):
        models, encoder = world(**options)
        rollout = roll(models, encoder)
        b, t = 1, 0
        lm = gpt2(7, initializer_range=0.3).eval() if module == "critic" else models.policy.lm
        prompt = rollout.tokens.prompt_ids[b][rollout.tokens.prompt_mask[b]].unsqueeze(0)
        hidden = lm(prompt, output_hidden_states=True).hidden_states[-1][0, -1]
        expected = getattr(models, module).value_head(hidden).item()
        assert rollout.values[b, t].item() == pytest.approx(expected, abs=1e-4)
    models, encoder = world(value_head=False)
    rollout = roll(models, encoder)
    assert rollout.values.shape == rollout.logprobs.shape
    assert not rollout.values.any()


@pytest.mark.parametrize("filters", [{}, {"top_k": 9, "top_p": 0.9}])
def test_microbatch_size_changes_nothing(filters):
    models, encoder = world(ref_seed=5, critic=True)
    sampling = Sampling(max_new_tokens=6, **filters)
    whole, single = (roll(models, encoder, sampling, prompts_at_once=size) for size in (16, 1))
    assert torch.equal(whole.tokens.response_ids, single.tokens.response_ids)
    names = ["logprobs", "ref_logprobs", "entropy", "values"] + (["kl_full", "ref_support_mass"] if filters else [])
    for name in names:
        torch.testing.assert_close(getattr(whole, name), getattr(single, name), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_microbatch_size_bounds_each_forward_pass(monkeypatch, size):
    """Reading the prompts and the teacher-forced passes; the policy itself has none of these."""
    models, encoder = world(critic=True)
    counted = {"policy": models.policy.lm, "reference": models.ref_policy.lm, "critic": models.critic.trunk}
    rows: dict[str, list[int]] = {name: [] for name in counted}

    def counting(module, packed, *rest):
        (name,) = (name for name, lm in counted.items() if module in (lm, lm.base_model))
        rows[name].append(packed.num_rows)
        return run_rows(module, packed, *rest)

    monkeypatch.setattr("rlhf_dialog.models.policy.run_rows", counting)
    roll(models, encoder, prompts_at_once=size)
    expected = {1: [1, 1, 1], 2: [2, 1], 3: [3]}[size]
    assert rows == {"policy": expected, "reference": expected, "critic": expected}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_at_once_bound_the_cache(monkeypatch, size):
    sizes = []

    class Counting(KeyValues):
        def __init__(self, lengths, num_new, device):
            sizes.append(len(lengths))
            super().__init__(lengths, num_new, device)

    monkeypatch.setattr("rlhf_dialog.models.generation.KeyValues", Counting)
    models, encoder = world()
    roll(models, encoder, rows_at_once=size)
    assert sizes == {1: [1, 1, 1], 2: [2, 1], 3: [3]}[size]


def test_responses_of_one_prompt_stand_side_by_side():
    models, encoder = world()
    prompts = [prompt for prompt in PROMPTS for _ in range(3)]
    rollout = roll(models, encoder, Sampling(max_new_tokens=6), prompts=prompts)
    assert [d.meta["index"] for d in rollout.dialogues] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert torch.equal(rollout.tokens.prompt_ids[3], rollout.tokens.prompt_ids[5])
    assert len({tuple(row) for row in rollout.tokens.response_ids[3:6].tolist()}) == 3  # each is drawn for itself
    for row, dialogue in enumerate(rollout.dialogues):
        ids = rollout.tokens.response_ids[row][rollout.response_mask[row]].tolist()
        assert dialogue.response == encoder.reply_text(ids)


def test_seconds_of_rollout_and_reward(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("rlhf_dialog.training.rollout.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    models, encoder = world()
    assert roll(models, encoder).clock.seconds == {"rollout": 5, "generation": 1, "reference": 1, "reward": 1}


# -- fewer episodes


def test_a_sum_that_is_no_32_bit_number_names_the_dialogue():
    class Huge(BaseReward):
        name = "huge"

        def __call__(self, dialogues):
            return [0.0, 1e39, 0.0]

    models, encoder = world()
    for skip in (False, True):
        with pytest.raises(
            RewardError, match=r"reward 'huge': the score 1e\+39 of dialogue 1 is not a finite 32-bit number"
        ):
            roll(models, encoder, reward=Huge(), rules=ScoringRules(skip))


@pytest.mark.parametrize("filters", [{}, {"top_k": 9}])
def test_a_rollout_of_some_rows_by_hand(filters):
    models, encoder = world()
    whole = roll(models, encoder, Sampling(max_new_tokens=6, **filters))
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
        assert (
            (before is None) == (after is None) == (not filters and name in ("support", "kl_full", "ref_support_mass"))
        )
        assert before is None or torch.equal(torch.stack([before[2], before[0]]), after), name
    assert (len(part), part.num_dropped, part.num_generated) == (2, 1, whole.num_tokens)
    assert (len(whole), whole.num_dropped) == (3, 0)


@pytest.mark.parametrize(
    ("missing", "group", "kept"), [([], 1, [0, 1, 2, 3]), ([1], 1, [0, 2, 3]), ([1], 2, [2, 3]), ([0, 3], 2, [])]
)
def test_who_is_dropped(missing, group, kept):
    class Missing(BaseReward):
        name = "missing"

        def __call__(self, dialogues):
            return [None if i in missing else 1.0 for i in range(len(dialogues))]

    models, encoder = world()
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[2], PROMPTS[0]]
    rollout = roll(models, encoder, reward=Missing(), prompts=prompts, rules=ScoringRules(True))
    assert rollout.scores.isnan().nonzero().flatten().tolist() == missing
    found = drop_unscored(rollout, group)
    assert [d.prompt_turns for d in found.dialogues] == [prompts[i].prompt_turns for i in kept]
    assert torch.equal(found.tokens.response_ids, rollout.tokens.response_ids[kept])
    assert (len(found), found.num_dropped) == (len(kept), 4 - len(kept))


def test_names_of_prompts():
    many = [Dialogue(["a"], meta={"split": "train", "index": i // 2}) for i in range(40)]
    assert prompt_names(many[:4]) == "train 0, train 1"
    assert prompt_names(many).endswith(", train 15 and 4 more")
    assert prompt_names([Dialogue(["a"])]) == "prompt ?"
