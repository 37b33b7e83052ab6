"""Dialogues that go on: the tokens of both speakers, the holes, what is paid where, and that sampling and update agree."""

import pytest
import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from rlhf_dialog.data.chat_template import TemplateEncoder
from rlhf_dialog.data.dialogue import Dialogue, Turn
from rlhf_dialog.data.prompt_ids import PromptEncoder
from rlhf_dialog.environments.base import EpisodeLimits
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.generation import Responder, Sampling, StopRule
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.policy import Policy, teacher_forced
from rlhf_dialog.rewards.scoring import Scorer
from rlhf_dialog.training import episodes, ppo
from rlhf_dialog.training.episodes import EpisodeInputs, newest_turns, run_episodes
from rlhf_dialog.training.multi_turn import Segments, Span
from rlhf_dialog.training.rollout import collect_rollout
from tests.parts.families import family_tokenizer
from tests.parts.rollouts import EOS, EOU, PAD, Recording, ids_of, slow, world
from tests.parts.tiny import byte_tokenizer, gpt2
from tests.parts.token_batches import prompts_of


class Says:
    """A user who says these turns one after the other; each step pays what is listed for it. The dialogue ends with the last."""

    def __init__(self, *turns, pays=(), truncates=False, last=""):
        self.turns, self.pays, self.truncates, self.last = turns, [*pays, *[0.0] * len(turns)], truncates, last

    def reset(self, seed=None):
        self.heard, self.seed = [], seed
        return self.turns[0], {}

    def step(self, reply):
        self.heard.append(reply)
        reward, over = self.pays[len(self.heard) - 1], len(self.heard) == len(self.turns)
        text = self.last if over else self.turns[len(self.heard)]
        return text, reward, over and not self.truncates, over and self.truncates, {}


class Spells(nn.Module):
    """A model whose next token follows from the newest one alone: behind <EOU> it writes `a`, `b`, and what `end` is."""

    device = torch.device("cpu")
    generation_config = None

    def __init__(self, end=EOU, positions=None):
        super().__init__()
        a, b = ids_of("ab")
        self.following = torch.zeros(259, dtype=torch.long)
        self.following[[EOU, a, b]] = torch.tensor([a, b, end])
        self.config = PretrainedConfig(vocab_size=259, **({"max_position_embeddings": positions} if positions else {}))

    def forward(self, input_ids, attention_mask, past_key_values=None, use_cache=None):
        logits = nn.functional.one_hot(self.following[input_ids], 259) * 200.0
        return CausalLMOutputWithPast(logits=logits, past_key_values=True)


def spelling(max_new_tokens=5, **options):
    policy, tokenizer = Policy(Spells(**options)), byte_tokenizer()
    encoder, stop = PromptEncoder(tokenizer, "<EOU>", 64), StopRule(policy, tokenizer, "<EOU>")
    return Responder(policy, encoder, Sampling(max_new_tokens), stop), Models(policy, None, policy, tokenizer)


def test_an_environment_that_never_ends_is_named():
    responder, _ = spelling()
    run_episodes(EpisodeInputs([Says(*"abcdef")], limits=EpisodeLimits(max_turns=6)), responder)
    with pytest.raises(UserError, match="environment Says: step has not ended the dialogue after 5 replies"):
        run_episodes(EpisodeInputs([Says(*"abcdef")], limits=EpisodeLimits(max_turns=5)), responder)


def test_two_turns_by_hand():
    """`ab <EOU>`, the user's ` c <EOU>`, `ab <EOU>`; a step pays on the last token of its reply, the score on the very last."""
    responder, models = spelling()
    users = [Says("Hi", "c", pays=(0.25, -1.0)), Says("Ho", pays=(0.5,)), Says("Hi", "de", last="Bye .")]
    reward = Recording()
    rollout = collect_rollout(EpisodeInputs(users), responder, Scorer(reward), models)
    ab, c, de = [*ids_of("ab"), EOU], [*ids_of(" c"), EOU], [*ids_of(" de"), EOU]
    assert rollout.tokens.response_ids.tolist() == [[*ab, *c, *ab, PAD], [*ab, *[PAD] * 7], [*ab, *de, *ab]]
    rows = ["1110001110", "1110000000", "1110000111"]
    assert rollout.response_mask.tolist() == [[digit == "1" for digit in row] for row in rows]
    assert rollout.turn_rewards.tolist() == [
        [0, 0, 0.25, 0, 0, 0, 0, 0, -1.0, 0],
        [0, 0, 0.5, 0, 0, 0, 0, 0, 0, 0],
        [0] * 10,
    ]
    paid = ppo.score_rewards(rollout.scores, rollout.response_mask, rollout.turn_rewards)
    penalties = ppo.kl_penalties(rollout.logprobs, rollout.ref_logprobs, rollout.response_mask, 0.2)
    assert (paid + penalties).tolist() == [
        [0, 0, 0.25, 0, 0, 0, 0, 0, 9.0, 0],  # Recording gives 10, 20, 30
        [0, 0, 20.5, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 30.0],
    ]
    assert (rollout.num_tokens, rollout.num_generated, rollout.truncated.tolist()) == (15, 15, [False] * 3)
    assert [user.heard for user in users] == [["ab", "ab"], ["ab"], ["ab", "ab"]]
    _, shorter, longer = reward.seen
    assert shorter == Dialogue(["Ho"], response="ab")
    assert longer.prompt_turns == ["Hi"]
    assert longer.turns == [Turn("policy", "ab"), Turn("user", "de"), Turn("policy", "ab"), Turn("user", "Bye .")]
    assert (longer.response, longer.truncated) == ("ab", False)


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"end": EOS}, [*ids_of("ab"), EOS, EOU, *ids_of(" c"), EOU, *ids_of("ab"), EOS]),
        ({"max_new_tokens": 2}, [*ids_of("ab"), EOU, *ids_of(" c"), EOU, *ids_of("ab")]),
    ],
)
def test_a_reply_without_a_separator_is_closed_for_the_user(options, ids):
    """The separator is the user's then: the policy has not written it, and is not trained on it."""
    responder, _ = spelling(**options)
    episodes = run_episodes(EpisodeInputs([Says("Hi", "c")]), responder)
    assert episodes.responses.tokens.response_ids.tolist() == [ids]
    own = len(ids_of("ab")) + ("end" in options)
    assert episodes.responses.tokens.response_mask.tolist() == [[True] * own + [False] * 4 + [True] * own]
    assert episodes.responses.truncated.tolist() == [episodes.dialogues[0].truncated] == ["end" not in options]


def test_a_turn_without_room_among_the_positions_is_truncated():
    """`Hi <EOU>` and two replies of 3 with a turn of 3 between them are 12 tokens; the second may have 5, so 14 are needed."""
    for heard, positions, replies in (("c", 14, 2), ("c" * 9, 14, 1)):
        responder, _ = spelling(positions=positions)
        episodes = run_episodes(EpisodeInputs([Says("Hi", heard), Says("Ho")]), responder)
        first, second = episodes.dialogues
        assert [turn.text for turn in first.turns] == ["ab", heard, "ab"][: 2 * replies]
        assert (first.truncated, second.truncated) == (replies == 1, False)
        assert episodes.responses.truncated.tolist() == [replies == 1, False]
        assert episodes.responses.tokens.response_mask.sum(dim=1).tolist() == [3 * replies, 3]


def test_the_oldest_turns_leave_a_context_without_room():
    """With 13 positions, a prompt may have 8 tokens: `Hi <EOU>ab <EOU> c <EOU>` has 9, `ab <EOU> c <EOU>` fits."""
    responder, _ = spelling(positions=13)
    episodes = run_episodes(EpisodeInputs([Says("Ho"), Says("Hi", "c", "d", "e")]), responder)
    assert [turn.text for turn in episodes.dialogues[1].turns] == ["ab", "c", "ab", "d", "ab", "e", "ab"]
    found = episodes.segments.split_tokens(episodes.responses.tokens)
    ab, c, d, e = [*ids_of("ab"), EOU], *([*ids_of(f" {x}"), EOU] for x in "cde")
    ho, hi = [*ids_of("Ho"), EOU], [*ids_of("Hi"), EOU]
    begin_c, begin_d = ([*ids_of(x), EOU] for x in "cd")
    contexts = [ho, hi, [*ab, *c], [*begin_c, *ab, *d], [*begin_d, *ab, *e]]
    assert unpadded(found) == contexts
    assert found.response_ids.tolist() == [ab] * 5
    assert episodes.responses.tokens.response_ids[1].tolist() == [*ab, *c, *ab, *d, *ab, *e, *ab]
    assert episodes.responses.tokens.response_mask.sum(dim=1).tolist() == [3, 12]
    assert not episodes.responses.truncated.any()
    assert run_episodes(EpisodeInputs([Says("Ho"), Says("Hi")]), responder).segments is None


def unpadded(tokens):
    return [row[counts].tolist() for row, counts in zip(tokens.prompt_ids, tokens.prompt_mask, strict=True)]


def test_a_context_has_no_more_turns_than_it_may():
    responder, _ = spelling()
    responder.context_size = 3
    episodes = run_episodes(EpisodeInputs([Says("Hi", "c", "d", "e")]), responder)
    found = episodes.segments.split_tokens(episodes.responses.tokens)
    ab, hi, c, d, e = ([*ids_of(x), EOU] for x in ("ab", "Hi", "c", " d", " e"))
    assert unpadded(found) == [hi, [*c, *ab, *d], [*ids_of("d"), EOU, *ab, *e]]
    assert found.response_mask.sum(dim=1).tolist() == [6, 3, 3]


def test_a_dialogue_that_the_user_breaks_off_is_truncated():
    responder, models = spelling()
    inputs = EpisodeInputs([Says("Hi", truncates=True), Says("Hi")])
    rollout = collect_rollout(inputs, responder, Scorer(Recording(), truncation_penalty=1.5), models)
    assert rollout.truncated.tolist() == [d.truncated for d in rollout.dialogues] == [True, False]
    assert rollout.scores.tolist() == [8.5, 20.0]


def test_the_last_reply_decides_over_a_penalty_on_length():
    responder, models = spelling()
    inputs = EpisodeInputs([Says("Hi", "c"), Says("Hi")])
    plain = collect_rollout(inputs, responder, Scorer(Recording()), models)
    last = [int(row[::-1].index(False)) for row in [[False, *mask.tolist()] for mask in last_runs(plain.response_mask)]]
    scorer = Scorer(Recording(), False, None, 1.0, 8, 9)
    rollout = collect_rollout(EpisodeInputs([Says("Hi", "c"), Says("Hi")]), responder, scorer, models)
    assert (plain.scores - rollout.scores).tolist() == pytest.approx([min(max((n - 1) / 8, 0), 1) for n in last])
    assert last[0] < plain.response_mask[0].sum()


def last_runs(mask):
    """The rows without the padding behind their last token."""
    return [row[: int(row.nonzero().max()) + 1] for row in mask]


USERS = (("Hi", "Who ?", "Bye ."), ("Where is the ladder ?",), ("Go !", "No ?"), ("One", "Two"))


def rolled(filters, longest=64):
    models, encoder = world(ref_seed=5, critic=True)
    encoder.max_prompt_length = longest
    for model in (models.policy, models.ref_policy, models.critic):
        model.double()
    models.policy.lm.generation_config.eos_token_id = list(range(120, 200))
    sampling = Sampling(max_new_tokens=6, temperature=0.8, **filters)
    stop = StopRule(models.policy, models.tokenizer, "<EOU>")
    torch.manual_seed(0)
    responder = Responder(models.policy, encoder, sampling, stop)
    users = [Says(*turns, pays=[0.5] * len(turns)) for turns in USERS]
    return models, collect_rollout(EpisodeInputs(users), responder, Scorer(Recording()), models)


@torch.no_grad()
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.7}])
def test_what_was_sampled_turn_by_turn_is_what_the_whole_episode_gives(filters):
    """In float64: the log-probs, entropies and values of sampling, of teacher forcing, and of one unpadded sequence."""
    models, rollout = rolled(filters)
    mask = rollout.response_mask
    replies = (mask & ~torch.cat([mask.new_zeros(len(mask), 1), mask[:, :-1]], dim=1)).sum(dim=1)
    assert replies.tolist() == [3, 1, 2, 2]
    forced = teacher_forced(models.policy, rollout.tokens, 0.8)
    for name, x in (("logprobs", forced.logprobs), ("entropy", forced.entropy)):
        torch.testing.assert_close(getattr(rollout, name), x, rtol=0, atol=1e-9)
    for b, t in mask.nonzero().tolist():
        ours, theirs = (slow(models, rollout, 0.8, m, b, t) for m in (models.policy, models.ref_policy))
        kept = torch.arange(259)
        if filters:
            kept = rollout.tokens.support[b, t][rollout.tokens.support[b, t] >= 0]
        where = (kept == rollout.tokens.response_ids[b, t]).nonzero().item()
        for name, whole in (("logprobs", ours), ("ref_logprobs", theirs)):
            expected = whole[kept].log_softmax(0)[where].item()
            assert getattr(rollout, name)[b, t].item() == pytest.approx(expected, abs=1e-9), name
        if filters:
            exact = (ours.exp() * (ours - theirs)).sum().item()
            assert rollout.kl_full[b, t].item() == pytest.approx(exact, abs=1e-9)
    for name in ("logprobs", "ref_logprobs", "entropy", "values"):
        assert not getattr(rollout, name)[~mask].any(), name
    assert filters == {} or (rollout.tokens.support[~mask] == -1).all()


@torch.no_grad()
def test_replies_of_a_long_dialogue_have_the_numbers_of_the_contexts_that_were_seen():
    """In float64, with room for 20 tokens before a reply: what was sampled token by token, and what the reference gives."""
    models, rollout = rolled({"top_k": 12}, longest=20)
    found = rollout.in_segments()
    assert len(found) > len(rollout) == len(USERS)
    assert found.num_tokens == rollout.num_tokens
    for name, model in (("logprobs", models.policy), ("ref_logprobs", models.ref_policy)):
        forced = teacher_forced(model, found.tokens, 0.8).logprobs
        torch.testing.assert_close(getattr(found, name), forced, rtol=0, atol=1e-9)


def test_the_ratio_of_a_sequence_is_that_of_a_whole_reply_in_segments_too():
    """GSPO-token, eq. 14, in loops over the replies of whole dialogues; the update reads these in segments."""
    _, rollout = rolled({}, longest=20)
    found, split = rollout.in_segments(), rollout.segments.split
    assert len(found) > len(rollout)
    torch.manual_seed(0)
    mask, old = rollout.response_mask, rollout.logprobs
    new = (old + 0.3 * torch.randn_like(old)).requires_grad_()
    advantages, low, high = torch.randn_like(old), 0.05, 0.1
    clip = ppo.Clip(low, high, None, by_sequence=True)
    inputs = [split(x) for x in (new, old, torch.full_like(old, torch.nan), advantages, torch.ones_like(old))]
    loss, sums = ppo.clip_loss(ppo.LossInputs(*inputs, found.response_mask, rollout.num_tokens, clip))
    loss.backward()
    total, clipped, slope, count = 0.0, 0, torch.zeros_like(old), 0
    for b, t in (mask & ~torch.cat([mask.new_zeros(len(mask), 1), mask[:, :-1]], dim=1)).nonzero().tolist():
        end = next((i for i in range(t, mask.shape[1]) if not mask[b, i]), mask.shape[1])
        ratio = (new[b, t:end] - old[b, t:end]).mean().exp().item()
        count += 1
        for i in range(t, end):
            a = advantages[b, i].item()
            surrogate = min(ratio * a, min(max(ratio, 1 - low), 1 + high) * a)
            total, clipped = total - surrogate, clipped + (surrogate != ratio * a)
            slope[b, i] = -ratio * a * (surrogate == ratio * a)
    assert count == 8  # replies, of 4 dialogues
    assert 0 < clipped < rollout.num_tokens
    assert loss.item() == pytest.approx(total / rollout.num_tokens, abs=1e-9)
    assert sums["clip_fraction"].item() == pytest.approx(clipped / rollout.num_tokens)
    torch.testing.assert_close(new.grad, slope / rollout.num_tokens)


def test_the_value_head_of_the_policy_along_an_episode():
    models, encoder = world()
    models.policy.double()
    models.ref_policy.double()
    responder = Responder(models.policy, encoder, Sampling(6), StopRule(models.policy, models.tokenizer, "<EOU>"))
    rollout = collect_rollout(EpisodeInputs([Says(*turns) for turns in USERS]), responder, Scorer(Recording()), models)
    forced = teacher_forced(models.policy, rollout.tokens, 1.0).values.detach()
    torch.testing.assert_close(rollout.values, forced, rtol=0, atol=1e-9)
    assert rollout.values.abs().max() > 0.1


def test_the_newest_turns_are_those_that_were_answered_or_had_no_room():
    began = Dialogue(["Well .", "Hi ?"])
    went_on = began.with_reply("a").with_user_turn("b")
    assert newest_turns(began.with_reply("a")) == newest_turns(went_on) == ["Hi ?"]  # `b` was the user's last word
    assert newest_turns(went_on.with_reply("c")) == ["Hi ?", "b"]
    went_on.truncated = True
    assert newest_turns(went_on) == ["Hi ?", "b"]


@pytest.mark.parametrize("name", ["qwen3", "gptoss"])
def test_each_reply_of_a_dialogue_sees_the_prompt_of_the_turns_before_it(name):
    """In the template's own form: it writes no thought in front of earlier replies, and ends a message otherwise than a reply."""
    tokenizer = family_tokenizer(name)
    encoder, policy = TemplateEncoder(tokenizer, 2000), Policy(gpt2(vocab_size=len(tokenizer), n_positions=2100))
    seen = []

    class Noting(Responder):
        def batch(self, ids, prompt_groups=None):
            seen.append([list(row) for row in ids])
            return super().batch(ids, prompt_groups)

    stop = StopRule(policy, tokenizer, "chat_template")
    stop.end_ids = sorted({*stop.end_ids, *range(0, 256, 3)})  # so that replies end
    responder = Noting(policy, encoder, Sampling(4), stop)
    torch.manual_seed(0)
    played = run_episodes(EpisodeInputs([Says("Hi", "c", "d e"), Says("Ho", "f")]), responder)
    for row, dialogue in enumerate(played.dialogues):
        turns = [*dialogue.prompt_turns, *(turn.text for turn in dialogue.turns)]
        for number in range(0, len(turns) - 1, 2):
            context = encoder.encode_prompt(turns[: number + 1])
            assert seen[number // 2][row] == context, (row, number)
    assert played.segments is not None


def test_segments_are_cut_from_dialogues_and_joined_again_by_hand():
    """Dialogue 0 in two parts with a token between them, dialogue 1 in one."""
    ids = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 0, 0, 0, 0]])
    prompts, mask = torch.tensor([[9, 8], [0, 7], [6, 5]]), torch.tensor([[True, True], [False, True], [True, True]])
    three = Segments(prompts_of(prompts, mask), [Span(0, 0, 3), Span(0, 4, 6), Span(1, 0, 2)], (2, 6))
    assert three.split(ids).tolist() == [[1, 2, 3], [5, 6, 0], [7, 8, 0]]
    assert three.split(ids.unsqueeze(2), -1).tolist() == [[[1], [2], [3]], [[5], [6], [-1]], [[7], [8], [-1]]]
    assert three.join(three.split(ids)).tolist() == [[1, 2, 3, 0, 5, 6], [7, 8, 0, 0, 0, 0]]
    both, second = three.select([1, 0]), three.select([1])
    assert [(span.row, span.start, span.end) for span in both.spans] == [(1, 0, 3), (1, 4, 6), (0, 0, 2)]
    assert both.split(ids.flip(0)).tolist() == three.split(ids).tolist()
    assert (second.rows, second.prompts.prompt_ids.tolist()) == ([0], [[6, 5]])
    assert second.split(ids[1:]).tolist() == [[7, 8]]


def test_which_prompts_are_shared():
    """Equal prompts of one group; without a group in `meta` none is."""
    groups = [0, 0, 1, 0, 2, None, None]
    prompts = [[5, 6], [5, 6], [5, 6], [5], [7], [8], [8]]
    dialogues = [Dialogue(["a"], meta={} if group is None else {"group": group}) for group in groups]
    assert episodes.prompt_group_ids(prompts, dialogues).tolist() == [0, 0, 2, 3, 4, 5, 6]
