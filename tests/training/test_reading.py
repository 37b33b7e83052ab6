"""PPOTrainer.step_on: episodes that a user's own loop brings, next to `step` on the same ones."""

import pytest
import torch

from rlhf_dialog.errors import RunStopped, UserError
from tests.parts.tiny import byte_tokenizer
from tests.parts.trainers import Places, make_trainer, numbers_of, parameters

IDS = byte_tokenizer()(" a b <EOU>", add_special_tokens=False)["input_ids"]


def given_of(rollout):
    tokens = rollout.tokens
    pairs = ((tokens.prompt_ids, tokens.prompt_mask), (tokens.response_ids, tokens.response_mask))
    prompts, responses = ([row[kept].tolist() for row, kept in zip(*pair, strict=True)] for pair in pairs)
    return prompts, responses, rollout.scores.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"use_share_model": False},
        {"advantage_estimator": "rloo", "num_responses_per_prompt": 2},
        {"kl_in": "loss", "ref_seed": 3, "ref_model": "another"},
    ],
)
def test_a_step_on_the_episodes_of_a_step_makes_the_same_step(keys):
    usual, own = make_trainer(Places(), **keys), make_trainer(Places(0.0), **keys)
    for _ in range(2):
        torch.manual_seed(5)
        expected = usual.step()
        torch.manual_seed(5)
        torch.rand(6, 5, dtype=torch.float64)  # what the sampling drew before the update
        found = own.step_on(*given_of(usual.rollout))
        for name, value in numbers_of(found).items():
            assert value == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name
    parts = {f"reward/places{end}" for end in ("", "_weighted", "_gain")}
    unknown = parts | {"objective/gain", "objective/gain_se"}
    missing = set(numbers_of(expected)) - set(numbers_of(found))
    assert all(name in unknown or name.startswith("gain_sums/") for name in missing)
    assert not any("gain" in name for name in numbers_of(found))
    theirs = parameters(usual.models.policy)
    for name, value in parameters(own.models.policy).items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=1e-5)
    assert (own.iteration, own.episodes, own.time_steps) == (2, 12, usual.time_steps)


def test_texts_turns_and_ids_are_the_same_episode():
    ended, cut = [*IDS], IDS[:2]
    trainer = make_trainer()
    encode = trainer.speaker.encoder.encode_prompt
    prompts = ["Hi .", ["Hi ."], encode(["Hi ."]), torch.tensor(encode(["Hi ."]))]
    trainer.step_on(prompts, ["a b", ended, torch.tensor(ended), cut], [1.0, 2.0, 3.0, 4.0])
    r = trainer.rollout
    assert [d.response for d in r.dialogues] == ["a b"] * 3 + ["a"]
    assert [d.prompt_turns for d in r.dialogues] == [["Hi ."]] * 4
    assert r.truncated.tolist() == [False, False, False, True]
    assert (r.scores.tolist(), r.num_tokens) == ([1.0, 2.0, 3.0, 4.0], 3 * len(IDS) + 2)
    assert torch.equal(r.tokens.response_ids[0], r.tokens.response_ids[2])
    torch.testing.assert_close(r.logprobs[0], r.logprobs[1])


def test_the_scores_of_a_model_in_float64_are_what_was_given():
    trainer = make_trainer(double=True)
    trainer.step_on(["a", "b"], ["x", "y"], [0.1, 1 / 3])
    assert trainer.rollout.scores.tolist() == [0.1, 1 / 3]


def test_prompt_and_response_may_fill_all_positions_of_the_model():
    trainer = make_trainer()
    trainer.step_on(["a"], [[3] * 254], [1.0])
    assert (trainer.rollout.num_tokens, trainer.rollout.tokens.prompt_ids.shape) == (254, (1, 2))


def test_the_checks_of_a_run_hold():
    trainer = make_trainer(ref_seed=3)
    with pytest.raises(RunStopped, match="the policy starts as its own reference"):
        trainer.step_on(["Hi ."], ["yes"], [1.0])
    trainer = make_trainer()
    torch.nn.init.constant_(trainer.models.policy.lm.transformer.ln_f.weight, float("nan"))
    with pytest.raises(RunStopped, match=r"the policy gives NaN or inf for 1 of 1 responses .*prompts: given 0"):
        trainer.step_on(["Hi ."], ["yes"], [1.0])


GROUPS = {"advantage_estimator": "rloo", "num_responses_per_prompt": 2}


@pytest.mark.parametrize(
    ("keys", "given", "message"),
    [
        ({}, ([], [], []), "found 0 prompts, 0 responses and 0 scores; give one of each"),
        ({}, (["a"], ["b", "c"], [1.0]), "found 1 prompts, 2 responses and 1 scores"),
        ({}, (["a", "b"], ["b", []], [1.0, 1.0]), r"responses\[1\] is '\[\]'; give a text, or at least one token id"),
        ({}, (["a"], [[3, 259]], [1.0]), r"responses\[0\] is '\[3, 259\]'.* each from 0 to 258"),
        ({}, ([[1.5]], ["b"], [1.0]), r"prompts\[0\] is '\[1.5\]'"),
        ({}, ([None], ["b"], [1.0]), r"prompts\[0\] is 'None'"),
        ({}, (["a"], [[[3]]], [1.0]), r"responses\[0\] is '\[\[3\]\]'"),
        ({}, (["a"], ["b"], [float("nan")]), r"scores\[0\] is nan, not a finite 32-bit number"),
        ({}, (["a"], ["b"], [1e40]), r"scores\[0\] is 1e\+40, not a finite 32-bit number"),
        ({}, (["a"], [[3] * 300], [1.0]), r"2 \+ 300 tokens, but the model has 256 positions"),
        ({"top_k": 3}, (["a"], ["b"], [1.0]), "top_k and top_p leave some tokens out"),
        (GROUPS, (["a"] * 3, ["b"] * 3, [1.0] * 3), "3 responses cannot be divided into 2 per prompt"),
        (GROUPS, (["a", "b"], ["b"] * 2, [1.0] * 2), r"prompts\[1\] is not the prompt before it"),
    ],
)
def test_what_cannot_be_learned_from(keys, given, message):
    trainer = make_trainer(**keys)
    before = parameters(trainer.models.policy)
    with pytest.raises(UserError, match=f"step_on: .*{message}"):
        trainer.step_on(*given)
    assert all(torch.equal(x, before[name]) for name, x in parameters(trainer.models.policy).items())
    assert trainer.iteration == 0
