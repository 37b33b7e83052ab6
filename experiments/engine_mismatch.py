"""How far an engine's log-probabilities are from the policy's: by rounding, and with the adapter of the iteration before.

python -m experiments.engine_mismatch --url http://127.0.0.1:18101 --model_path fetched/smollm2 --precision fp32

The server is that of docs/SCALING.md, started with the model and `--dtype` of the same precision. Prints a row of the table in
docs/SCALING.md: the noise that the run measures itself, the mismatch of two honest iterations, and that of a rollout after each
for which the new adapter was not sent. Nats for each token, at temperature 0.7.
"""

import argparse
from dataclasses import replace
from statistics import mean
from typing import Any

import torch

from rlhf_dialog.models.engine import EngineResponder
from rlhf_dialog.runs.agent import PPOAgent
from rlhf_dialog.training.iteration_metrics import engine_metrics
from rlhf_dialog.training.rollout import collect_rollout

ITERATIONS, RESPONSES, TOKENS = 2, 16, 16


def vowels(prompts: list[str], completions: list[str]) -> list[float]:
    return [sum(letter in "aeiou" for letter in text) / 10 for text in completions]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("url", "http://127.0.0.1:8001"), ("model_path", "fetched/smollm2"), ("precision", "fp32")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--data_path", default="fetched/chitchat")
    asked = parser.parse_args()
    keys: dict[str, Any] = {"rollout_batch_size": RESPONSES, "max_new_tokens": TOKENS, "max_iterations": 10}
    keys |= {"model_path": asked.model_path, "precision": asked.precision, "engine": {"urls": [asked.url]}}
    keys |= {"run_dir": "runs", "experiment_name": "engine_mismatch", "env.args.data_path": asked.data_path}
    agent = PPOAgent.from_config("ask_back.yaml", vowels, **keys)
    trainer = agent.build()
    assert trainer.rollout_engine is not None
    responder = trainer.rollout_engine.responder
    assert isinstance(responder, EngineResponder)
    assert responder.engine is not None
    honest, stale = [], []
    for _ in range(ITERATIONS):
        honest.append(trainer.step())
        with torch.no_grad():  # the policy has learned, and the server does not know
            rollout = collect_rollout(
                trainer.next_episodes(), replace(responder), trainer.scorer, trainer.models, trainer.keep_features
            )
        assert rollout.sampled_logprobs is not None
        stale.append(engine_metrics(rollout, rollout.sampled_logprobs, 2.0, trainer.world))
    responder.engine.leave()
    cells = [
        f"{mean(row[f'engine/{name}'] for row in rows):.2g}"
        for rows in (honest, stale)
        for name in ("mismatch", "mismatch_max")
    ]
    print(" | ".join([asked.model_path, asked.precision, f"{trainer.noise.mean:.2g}", *cells]))


if __name__ == "__main__":
    main()
