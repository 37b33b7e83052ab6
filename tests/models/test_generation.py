"""Sampling: where responses end, which tokens may be drawn and how often, by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from tokenizers import normalizers
from torch import nn
from transformers import PretrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from rlhf_dialog.data.prompt_ids import PromptEncoder
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.generation import Sampling, StopRule, scores_of
from rlhf_dialog.models.policy import Policy
from tests.parts.tiny import byte_tokenizer, merging_tokenizer
from tests.parts.token_batches import respond_to

PAD, EOS, EOU = 256, 257, 258
LETTERS = byte_tokenizer().get_vocab()


class Scripted(nn.Module):
    """A model that says what it is told: `logits` (steps, B, V)."""

    device = torch.device("cpu")

    def __init__(self, logits, eos=None):
        super().__init__()
        self.logits, self.calls = logits, 0
        self.generation_config = SimpleNamespace(eos_token_id=eos)
        self.config = PretrainedConfig(vocab_size=logits.shape[2])

    def forward(self, input_ids, attention_mask, position_ids, past_key_values=None, use_cache=True):
        assert not torch.is_grad_enabled()
        self.calls += 1
        return CausalLMOutputWithPast(logits=self.logits[self.calls - 1].unsqueeze(1), past_key_values="cache")


def script(*rows, eos=None):
    """A Scripted model whose most likely tokens are those of the rows (B of them, equally long)."""
    wanted = torch.tensor(rows).T
    return Scripted(nn.functional.one_hot(wanted, 262).float() * 50, eos)


def ask(lm, sampling, tokenizer=None, separator="<EOU>", pad_id=PAD, **options):
    """Responses of a Scripted model to prompts of one token."""
    ids, policy = torch.zeros(lm.logits.shape[1], 1, dtype=torch.long), Policy(lm)
    stop = StopRule(policy, tokenizer or byte_tokenizer(), separator)
    return respond_to(policy, ids, ids == 0, sampling, stop, pad_id, **options)


def test_responses_end_at_eos_separator_or_the_length_limit_and_sampling_with_the_last_of_them():
    lm = script([5, EOS, 6, 7], [EOU, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, EOS], [9, 7, 7, 3], eos=9)
    found = ask(lm, Sampling(max_new_tokens=4, greedy=True), pad_id=200)
    rows = [[5, EOS], [EOU], [5, 6, 7, 8], [5, 6, 7, EOS], [9]]
    assert found.tokens.response_ids.tolist() == [row + [200] * (4 - len(row)) for row in rows]
    assert found.tokens.response_mask.tolist() == [[t < len(row) for t in range(4)] for row in rows]
    assert found.truncated.tolist() == [False, False, True, False, False]
    lm = script([5, EOS, 6], [EOU, 7, 8])
    assert ask(lm, Sampling(max_new_tokens=3, greedy=True)).tokens.response_ids.shape == (2, 2)
    assert lm.calls == 2


def spell(text):
    return [LETTERS["Ġ" if letter == " " else letter] for letter in text]


TEXT = byte_tokenizer(separator_token=False)
HALF, LINE = TEXT("é")["input_ids"][0], LETTERS["Ċ"]
SECTIONS = [TEXT(text)["input_ids"] for text in ("ça !§", "!§ça é", "çç§a")]


@pytest.mark.parametrize("look_every", [None, 9])
@pytest.mark.parametrize(
    ("tokenizer", "separator", "rows", "lengths", "truncated"),
    [
        (TEXT, "<EOU>", [spell(" hi<EOU>x"), spell("<EOU<EOUx"), spell("<<EOU>abc")], [8, 9, 6], [0, 1, 0]),
        (TEXT, "<EOU>", [[5, EOS, 6], [7, 6, 5]], [2, 3], [0, 1]),  # the end-of-text token ends a response too
        (TEXT, "end of turn", [[HALF] * 5 + spell("end of turn") + [5]], [16], [0]),  # behind replacement signs
        (TEXT, "§", [row[:7] for row in SECTIONS], [7, 3, 6], [0, 0, 0]),  # the byte A7 ends both "§" and "ç"
        (byte_tokenizer(), "<pad>\n", [[5, PAD, LINE, 6], [LINE, 6, PAD, 5]], [3, 4], [0, 1]),  # special, and a letter
    ],
)
def test_a_separator_of_text_ends_with_the_token_that_completes_it(
    tokenizer, separator, rows, lengths, truncated, look_every
):
    sampling = Sampling(len(rows[0]), greedy=True)
    found = ask(script(*rows), sampling, tokenizer, separator, pad_id=200, look_every=look_every)
    width = max(lengths)
    assert found.tokens.response_mask.tolist() == [[t < n for t in range(width)] for n in lengths]
    expected = [[*row[:n], *[200] * (width - n)] for row, n in zip(rows, lengths, strict=True)]
    assert found.tokens.response_ids.tolist() == expected
    assert found.truncated.tolist() == list(map(bool, truncated))


def test_end_ids_of_tokenizer_model_and_separator():
    policy = Policy(script([0]))
    assert StopRule(policy, byte_tokenizer(), "<EOU>").end_ids == [EOS, EOU]
    assert StopRule(policy, byte_tokenizer(), "||").end_ids == [EOS]
    policy.lm.generation_config.eos_token_id = [0, EOS]
    assert StopRule(policy, byte_tokenizer(), "||").end_ids == [0, EOS]
    policy.lm.generation_config = None
    assert StopRule(policy, byte_tokenizer(), "||").end_ids == [EOS]
    assert StopRule(policy, byte_tokenizer(), "<EOU>", [7, EOS]).end_ids == [7, EOS, EOU]
    with pytest.raises(UserError, match=r"stop_token_ids: 259 is not a token: the tokenizer's ids end at 258"):
        StopRule(policy, byte_tokenizer(), "<EOU>", [7, 259])


def test_a_separator_that_merges_with_the_space_before_it_ends_a_response():
    """The id of " ###" is not that of "###"; a model may write either, or its pieces."""
    tokenizer, separator = merging_tokenizer(), "###"
    whole, pieces = tokenizer.convert_tokens_to_ids([f"Ġ{separator}", separator]), [LETTERS[x] for x in separator]
    reply = PromptEncoder(tokenizer, separator, 64).encode_reply("a")
    assert reply == [LETTERS["Ġ"], LETTERS["a"], whole[0]]
    rows = [reply, [5, 6, whole[1]], [5, LETTERS["Ġ"], *pieces]]
    found = ask(script(*(row + [7] * (9 - len(row)) for row in rows)), Sampling(9, greedy=True), tokenizer, separator)
    assert found.tokens.response_mask.sum(dim=1).tolist() == [len(row) for row in rows]
    assert not found.truncated.any()


def test_a_separator_that_would_not_end_a_response_or_ends_usual_text_is_refused():
    policy, lower = Policy(script([0])), byte_tokenizer(separator_token=False)
    lower.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(UserError, match=r"turn_separator: no response would end.*' a b <eou>'"):
        StopRule(policy, lower, "<EOU>")
    assert StopRule(policy, lower, "<eou>").end_ids == [EOS]
    with pytest.raises(UserError, match=r"turn_separator: ' ' is part of usual text"):
        StopRule(policy, byte_tokenizer(), " ")


def test_a_bias_is_added_to_the_first_token_and_another_one_to_all_others():
    bias = torch.tensor([1.0, 0.0, 4.0]), torch.tensor([0.0, 2.0, -2.0])
    sampling, logits = Sampling(bias=bias, temperature=2.0), torch.tensor([[1.0, 2.0, 4.0]])
    scores = [scores_of(logits, torch.zeros(1, 3), t, sampling, None, sampling.filters()).tolist() for t in range(3)]
    assert scores == [[[1.0, 1.0, 4.0]], [[0.5, 2.0, 1.0]], [[0.5, 2.0, 1.0]]]  # (logits + bias) / 2


def test_min_new_tokens_forbids_the_end_for_so_many_tokens():
    logits = torch.zeros(5, 2, 259)
    logits[:, :, EOS], logits[:, :, EOU], logits[:, :, 3] = 9.0, 8.0, 7.0
    found = ask(Scripted(logits), Sampling(max_new_tokens=5, min_new_tokens=2, greedy=True))
    assert found.tokens.response_ids.tolist() == [[3, 3, EOS]] * 2
    filtered = ask(Scripted(logits), Sampling(max_new_tokens=5, min_new_tokens=1, top_k=2))
    assert set(filtered.tokens.support[:, 0].flatten().tolist()).isdisjoint({EOS, EOU})
    assert set(filtered.tokens.support[0, 1].tolist()) - {-1} == {EOS, EOU}


@pytest.mark.parametrize("separator", ["###", "§", "a c"])
@pytest.mark.parametrize("make", [merging_tokenizer, lambda: byte_tokenizer(separator_token=False)])
def test_the_forbidden_tokens_are_those_that_end_the_response(make, separator):
    """Against asking `ended` about every token of the vocabulary."""
    tokenizer = make()
    stop = StopRule(Policy(script([0])), tokenizer, separator)
    for text in ("", "x", " a", " a #", " ##", "<EOU", "<EO", "é <EOU", " a ", "a"):
        written = tokenizer(text)["input_ids"] if text else []
        written = written + [tokenizer("§")["input_ids"][0]] * (separator == "§" and text == "x")
        every = torch.arange(len(tokenizer))
        rows = torch.cat([torch.tensor(written, dtype=torch.long).expand(len(every), -1), every.unsqueeze(1)], dim=1)
        left = stop.without_ends(torch.zeros(1, len(every)), rows[:1, :-1])
        assert torch.equal(left[0].isinf(), stop.find_ends(rows)), (text, written)


def test_only_tokens_that_are_written_decide_which_ones_would_end_the_response():
    """Behind " ##" a third # ends it; a buffer of the whole response has padding behind what is written."""
    tokenizer = byte_tokenizer(separator_token=False)
    stop, sampling = StopRule(Policy(script([0])), tokenizer, "###"), Sampling(min_new_tokens=5)
    written, mark = tokenizer(" ##")["input_ids"], tokenizer("#")["input_ids"][0]
    buffer = torch.tensor([[*written, *[tokenizer.eos_token_id] * 9]])
    logits = torch.zeros(1, len(tokenizer))
    found = scores_of(logits, buffer, len(written), sampling, stop, sampling.filters())
    assert found[0, mark] == -torch.inf
    assert found[0, written[0]] == 0.0


LOGITS = [math.log(p) for p in (0.05, 0.4, 0.1, 0.25, 0.2)]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"temperature": 2.0}, [0, 1, 2, 3, 4]),
        ({"top_k": 3, "temperature": 2.0}, [1, 3, 4]),
        ({"top_p": 0.6}, [1, 3]),  # .4 + .25 reaches .6
        ({"top_p": 0.7, "temperature": 4.0}, [1, 3, 4, 2]),  # flatter: a share of .70 takes four
        ({"top_k": 4, "top_p": 0.69}, [1, 3, 4]),  # .65 / .95 = .684 does not reach .69
    ],
)
def test_sampling_frequencies_match_the_renormalised_probabilities(settings, kept):
    torch.manual_seed(0)
    vocabulary = torch.full((259,), -1e9)
    vocabulary[:5] = torch.tensor(LOGITS)
    lm = Scripted(vocabulary.expand(1, 6000, 259).clone())
    found = ask(lm, Sampling(max_new_tokens=1, **settings), rows_at_once=6000)
    frequencies, support = (torch.bincount(found.tokens.response_ids[:, 0]) / 6000).tolist(), found.tokens.support
    weights = [math.exp(LOGITS[i] / settings.get("temperature", 1.0)) if i in kept else 0.0 for i in range(5)]
    for frequency, weight in zip(frequencies + [0.0] * (5 - len(frequencies)), weights, strict=True):
        probability = weight / sum(weights)
        assert abs(frequency - probability) <= 5 * math.sqrt(probability * (1 - probability) / 6000)
    if "top_k" in settings or "top_p" in settings:
        assert support.shape == (6000, 1, len(kept))
        assert (support.sort(dim=-1).values == torch.tensor(sorted(kept))).all()
    else:
        assert support is None
