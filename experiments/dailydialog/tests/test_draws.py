"""Draws of a model: ranked by what needs no reference, kept chunk by chunk, and made into data."""

import itertools
import json

from experiments.dailydialog import draws
from rlhf_dialog.data.prompts import PromptRules


def test_draws_are_ranked_by_what_needs_no_reference(world, tmp_path):
    given = {"model": str(world / "start"), "config": str(world / "reward.yaml"), "tokens": 1, "draws": 3, "seed": 0}
    draws.draw(draws.Plan(**given, folder=str(tmp_path)))
    chunk = [json.loads(line) for line in (tmp_path / "chunks" / "00000.jsonl").read_text().splitlines()]
    for one in chunk:  # the price on copies alone; METEOR needs a reference
        turns = [turn.lower().split() for turn in one["turns"][-2:]]
        for reply, score in zip(one["replies"], one["scores"], strict=True):
            words = reply.lower().split()
            pairs = list(itertools.pairwise(words))
            shares = [sum(pair in list(itertools.pairwise(t)) for pair in pairs) / len(pairs) for t in turns if pairs]
            assert score <= 0
            assert (score == 0) == (max(shares, default=0) == 0)
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    by_prompt = {tuple(one["turns"]): dict(zip(one["replies"], one["scores"], strict=True)) for one in chunk}
    for pair in pairs:
        scores = by_prompt[tuple(pair["prompt"])]
        if len(by_prompt) == len(chunk):
            assert scores[pair["chosen"]] == max(scores.values())
            assert scores[pair["rejected"]] == min(scores.values())
    counts = json.loads((tmp_path / "drawn.json").read_text())
    assert counts["tokens"] == sum(one["tokens"] for one in chunk)
    assert counts["prompts"] == len(chunk)
    before = (tmp_path / "chunks" / "00000.jsonl").stat().st_mtime_ns
    draws.draw(draws.Plan(**given, folder=str(tmp_path)))
    assert (tmp_path / "chunks" / "00000.jsonl").stat().st_mtime_ns == before


def test_what_is_written_of_draws(tmp_path):
    row = {
        "turns": ["Is it far ?"],
        "replies": ["Two streets .", "Far .", "Near ."],
        "scores": [0.1, 0.5, -0.2],
        "tokens": 9,
    }
    same = {"turns": ["Hello ."], "replies": ["Hi .", "Hi ."], "scores": [0.0, 0.0], "tokens": 4}
    draws.write(tmp_path, [row, same], 13)
    assert [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()] == [
        {"prompt": ["Is it far ?"], "chosen": "Far .", "rejected": "Near ."}
    ]
    prompts = PromptRules().load(str(tmp_path / "best"), "train")
    assert [(one.prompt_turns, one.reference) for one in prompts] == [(["Is it far ?"], "Far ."), (["Hello ."], "Hi .")]
    assert json.loads((tmp_path / "drawn.json").read_text()) == {"tokens": 13, "prompts": 2, "best": 2, "pairs": 1}
