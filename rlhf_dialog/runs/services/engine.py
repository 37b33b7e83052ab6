"""The engine of a run: its servers are checked before the first rollout, get the weights before each, and are left clean."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.models.engine import PROBE, Engine, EngineResponder
from rlhf_dialog.models.lora import tied_names
from rlhf_dialog.runs.services.base import Service
from rlhf_dialog.training import checks
from rlhf_dialog.training.reading import read_policy
from rlhf_dialog.training.trainer import PPOTrainer, RolloutEngine

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@contextlib.contextmanager
def as_user_error() -> Iterator[None]:
    """Before training has begun, a server that fails is a mistake of the setup."""
    try:
        yield
    except RunStopped as error:
        raise UserError(str(error)) from None


class EngineService(Service):
    """Attaches the engine to the trainer; all ranks have one, and rank 0 sends the weights."""

    def __init__(self, config: Config, run_folder: Path, world: World):
        assert config.engine is not None
        self.config, self.world = config, world
        self.engine = Engine(config.engine, run_folder, config.use_lora)
        self.sent: int | None = None  # the iteration of the newest weights

    def attach(self, trainer: PPOTrainer) -> None:
        """Meet the servers, and let them write the responses from now on. Raises UserError."""
        config = self.config
        own = trainer.responder
        self.trainer = trainer
        self.engine.dtype = DTYPES[trainer.placement.precision]
        self.probe = own.encoder.tokenizer(PROBE, add_special_tokens=False)["input_ids"]
        length = config.max_prompt_length + config.max_new_tokens
        is_tied = not config.use_lora and bool(tied_names(own.policy.lm))
        with as_user_error():
            self.world.on_main(lambda: self.engine.meet(self.probe, length, config.lora_r, is_tied))
        self.engine.bases = self.world.broadcast(self.engine.bases)
        assert config.engine is not None
        responder = EngineResponder(**vars(own), engine=self.engine, first=self.world.rank)
        trainer.rollout_engine = RolloutEngine(responder, self.sync, config.engine.cap)

    def sync(self, iteration: int) -> None:
        """Let the servers have the weights of this iteration. Raises RunStopped, the first time UserError."""
        if self.sent == iteration:
            return
        policy = self.trainer.models.policy
        with as_user_error() if self.sent is None else contextlib.nullcontext():
            with self.trainer.placement.whole_weights():
                name = self.world.on_main(lambda: self.engine.send(policy, iteration))
            self.engine.model = name
            if self.sent is None:
                self._compare()
        self.sent = iteration

    def _compare(self) -> None:
        """Compare what policy and servers predict of the probe. Raises UserError when that is more than rounding."""
        ids, world, placement = self.probe[: self.config.max_prompt_length], self.world, self.trainer.placement
        bits = 16 if placement.reduced_precision else 32
        policy = self.trainer.models.policy
        num_ids = policy.num_ids
        policy.num_ids = None  # of a prompt, the server gives ids that are no tokens a probability, too
        try:
            with world.fail_together(), placement.rollout():
                tokens = self.trainer.responder.batch([ids[:1]]).with_replies([ids[1:]])
                ours = read_policy(policy, tokens, 1.0, 1)["logprobs"][0].tolist()
                rounding = checks.measure_rounding("policy", policy, tokens, 1.0)
        finally:
            policy.num_ids = num_ids
        noise = checks.combine_rounding(rounding, world, 1.0, bits)

        def compare() -> None:
            for number in range(len(self.engine.urls)):
                theirs = self.engine.prompt_logprobs(number, ids)
                mean = sum(abs(x - y) for x, y in zip(theirs, ours, strict=True)) / len(ours)
                if not mean <= checks.ENGINE_LIMITS[bits][1] * noise.mean:
                    raise self.engine.fault(
                        number,
                        f"its log-probabilities of a text differ from the policy's by {mean:.3g} nats in the mean (rounding: "
                        f"{noise.mean:.2g}), so it has other weights; start it with the run's model_path and precision",
                    )

        world.on_main(compare)

    def end(self, error: BaseException | None) -> None:
        if self.world.is_main and self.engine.bases[0]:
            self.engine.leave()
