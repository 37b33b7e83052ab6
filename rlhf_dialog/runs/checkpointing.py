"""The checkpoints of a PPO run: how it starts or continues in its folder, and saves. Rank 0 writes, every rank reads."""

import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from rlhf_dialog.atomic_files import disk_errors_as_user_errors, replace_json, replace_text
from rlhf_dialog.config.loading import dump_yaml
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.hub import LOCAL_NAMES, local_names
from rlhf_dialog.distributed import zero_checkpoint
from rlhf_dialog.distributed.random_states import RandomStates, random_states, seed_rank
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.runs import checkpoint, identity
from rlhf_dialog.runs.data_source import agent_config
from rlhf_dialog.runs.folder import Start
from rlhf_dialog.runs.metrics_file import cut_metrics
from rlhf_dialog.runs.services.base import PPORun, Service
from rlhf_dialog.runs.services.ledger import LEDGER, cut_ledger
from rlhf_dialog.runs.training_state import load_training, load_weights, save_training, world_size_of
from rlhf_dialog.runs.verification import changed_versions, verify

logger = logging.getLogger(__name__)
AUTO_INTERVAL = 5  # iterations between checkpoints under `save_interval: auto`, after that of iteration 1,
SHARE = 20  # if so many times the seconds of the last one have passed since it ended


def first_checkpoint(config: Config) -> int:
    """The iteration that has the first checkpoint of a run."""
    return 1 if config.save_interval == "auto" else config.save_interval


class RunCheckpointer:
    """Saves the trainer and the services of a run in its folder, and restores them."""

    def __init__(self, run: PPORun, services: Sequence[Service], identity_: dict[str, Any]):
        """`identity_`: `identity.identity_of` the initial models."""
        self.config = run.config
        self.run_folder = run.folder
        self.trainer = run.trainer
        self.run = run
        self.services = services
        self.identity = identity_
        self.world = run.world
        self.checkpoints = run.folder / "checkpoints"
        self.next_save = -math.inf  # on the clock `time.monotonic`, not before which a checkpoint is due

    @property
    def _stateful(self) -> list[Service]:
        return [service for service in self.services if service.key]

    def begin(self, start: Start) -> None:
        """Prepare trainer and folder to start or continue the run."""
        source = self.world.on_main(partial(self._prepare, start))
        if source is not None:
            self._restore(source)
        self.world.on_main(self._write_config)
        if start.weights_from is not None:
            self._take_weights(start.weights_from)

    def _prepare(self, start: Start) -> Path | None:
        kept = next((service.files for service in self.services if service.files), None)
        source = start.prepare(self.run_folder, kept)
        zero_checkpoint.forget_staging(self.checkpoints)
        if start.resume and source is None:
            cut_ledger(self.run_folder / LEDGER, 0)
            cut_metrics(self.run_folder / "metrics.jsonl", 0)
            logger.info("%s: has no checkpoint yet; the run starts from the beginning", self.run_folder)
        return source

    def _write_config(self) -> None:
        with disk_errors_as_user_errors(self.run_folder / "config.yaml"):
            replace_text(self.run_folder / "config.yaml", dump_yaml(self.config))
            replace_json(self.run_folder / LOCAL_NAMES, local_names(self.config.model_dump()))  # for the model card
        logger.info("run folder: %s", self.run_folder)

    def _restore(self, source: Path) -> None:
        """Continue from a checkpoint; changes nothing in the folder before every rank has read it."""
        trainer, world = self.trainer, self.world
        with world.fail_together():
            _, state = checkpoint.read_state(self.checkpoints, source)
        world.on_main(partial(verify, source, state, self.config.verify_checkpoint))
        with world.fail_together(), checkpoint.as_user_error(source):
            identity.refuse_other_formulas(source, state)
            identity.refuse_another_run(self.identity, state["identity"], source)
            allowed = self.config.allow_changed_reward
            identity.refuse_changed_reward(self.identity, state["identity"], source, allowed)
            zero_checkpoint.refuse_another_partitioning(source, state, trainer.engines, world)
        if changes := identity.changed_settings(self.config, state.get("settings")):
            logger.info("resumed with changed settings: %s", "; ".join(changes))
        if versions := changed_versions(state):
            logger.warning("resumed with other versions, which may change the numbers: %s", versions)
        with world.fail_together(), trainer.placement.writable_weights():
            load_training(self.checkpoints, self._modules(), trainer.optimizers, world, source)
            with checkpoint.as_user_error(source):
                trainer.load_state_dict(state)
                for service in self._stateful:
                    service.load_state_dict(state.get(service.key))
        with world.fail_together(), checkpoint.as_user_error(source):
            zero_checkpoint.read_partitions(source, state, trainer.engines, world)
        if (saved_by := world_size_of(state)) != world.size:
            seed_rank(self.config.seed, world, trainer.iteration)
            effect = "random numbers are seeded again, so the run continues, but not exactly as it would have"
            text = "%s: was saved by %d processes, but this run has %d; %s"
            logger.warning(text, source, saved_by, world.size, effect)
        with trainer.placement.whole_weights():
            world.on_main(partial(self._align_with_checkpoint, state))
        logger.info("resumed after iteration %d", trainer.iteration)

    def _align_with_checkpoint(self, state: dict[str, Any]) -> None:
        """Bring the files next to the checkpoint to its iteration."""
        iteration = self.trainer.iteration
        if checkpoint.best_iteration(state) == iteration:
            self._save_best()  # a kill may have come before it was saved
        cut_ledger(self.run_folder / LEDGER, iteration)
        cut_metrics(self.run_folder / "metrics.jsonl", iteration)

    def _take_weights(self, run: Path) -> None:
        """Start with the weights of another run's newest checkpoint, and save that start, so that it can be resumed."""
        with self.world.fail_together():
            source, state = checkpoint.read_state(run / "checkpoints")
        self.world.on_main(partial(verify, source, state, self.config.verify_checkpoint))
        with self.world.fail_together():
            changes = identity.differences(self.identity, state.get("identity"))
            wrong = [one for one in changes if one.startswith(("model_path:", "lora_"))]
            if self.config.use_lora and wrong:
                raise UserError("\n  ".join([f"{source}: its adapter does not fit the model of this run:", *wrong]))
        with self.world.fail_together(), self.trainer.placement.writable_weights():
            missing = load_weights(source, self._modules(), self.world.device)
        fresh = ["the optimizer", "the counters", "the position in the data", "the KL controller", *missing]
        fresh += ["the state of the reward"] if state.get("reward") else []
        logger.info("loaded the weights of %s; newly initialised: %s", source, ", ".join(fresh))
        if changes:
            logger.info("differences from that run: %s", "; ".join(changes))
        self.save()

    def is_due(self) -> bool:
        """Whether this iteration is to have a checkpoint. All ranks must call it; the clock is that of rank 0."""
        iteration, interval = self.trainer.iteration, self.config.save_interval
        if interval != "auto":
            return iteration % interval == 0
        may_save = iteration == 1 or iteration % AUTO_INTERVAL == 0
        return may_save and self.world.broadcast(time.monotonic() >= self.next_save)

    def save(self) -> None:
        """Write the checkpoint of this iteration, and its agent if it is the best so far. All ranks must call it."""
        start = time.monotonic()
        random_of_ranks = self.world.gather(random_states())
        staged = zero_checkpoint.write_partitions(self.checkpoints, self.trainer.engines, self.world)
        with self.trainer.placement.whole_weights():
            self.world.on_main(partial(self._write, random_of_ranks, staged))
        end = time.monotonic()
        self.next_save = end + SHARE * (end - start)

    def _write(self, random_of_ranks: list[RandomStates], staged: Path | None) -> None:
        trainer, state = self.trainer, self.trainer.state_dict()
        state |= identity.record(self.config, self.identity) | zero_checkpoint.describe(trainer.engines, self.world)
        state["system_prompt"] = agent_config(trainer).system_prompt  # for `rlhf-dialog export`, which reads no data
        state |= {service.key: service.state_dict() for service in self._stateful}
        modules, optimizers = self._modules(), trainer.optimizers
        save_training(self.checkpoints, self.config, state, modules, optimizers, random_of_ranks, staged)
        zero_checkpoint.forget_staging(self.checkpoints)
        if checkpoint.best_iteration(state) == trainer.iteration:
            self._save_best()

    def _save_best(self) -> None:
        models = self.trainer.models
        save_agent(self.run_folder / "best_agent", models.policy, models.tokenizer, agent_config(self.trainer))

    def _modules(self) -> dict[str, nn.Module]:
        return {name: engine.module for name, engine in self.trainer.engines.items()}
