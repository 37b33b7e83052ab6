"""PPOAgent: a run from its configuration to the saved agent. Checks what can be checked, then trains, logs and saves."""

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from rlhf_dialog.atomic_files import disk_errors_as_user_errors
from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.loading import find_config, load_config, replace_keys, reward_nodes
from rlhf_dialog.config.registry import COLON, RewardFactory, VecInfoFactory
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import keep_with_room, prompt_encoder
from rlhf_dialog.data.prompts import SYSTEM, having
from rlhf_dialog.distributed import process_group, strategy
from rlhf_dialog.distributed.memory import warn_of_memory
from rlhf_dialog.distributed.placement import NewOptimizer, check_placement, new_optimizer
from rlhf_dialog.distributed.random_states import generators_of_users, seed_rank
from rlhf_dialog.distributed.runtime import return_freed_memory
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.generation import silent
from rlhf_dialog.models.loading import load_models
from rlhf_dialog.models.precision import warn_of_slow_bf16
from rlhf_dialog.models.pretrained import warn_of_remote_code
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.rewards.base import BaseReward, check_alone
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.rewards.function_reward import FunctionReward, function_name
from rlhf_dialog.runs import identity
from rlhf_dialog.runs.checkpointing import RunCheckpointer, first_checkpoint
from rlhf_dialog.runs.data_source import agent_config, prompts_of, read_source, report_size
from rlhf_dialog.runs.folder import Start
from rlhf_dialog.runs.lock import lock_folder
from rlhf_dialog.runs.publish import check_push, push_agent
from rlhf_dialog.runs.services.base import Metrics, PPORun, Service, after_iteration, end_iteration, end_with
from rlhf_dialog.runs.services.engine import EngineService
from rlhf_dialog.runs.services.guard import RunGuard
from rlhf_dialog.runs.services.interrupts import Interrupts
from rlhf_dialog.runs.services.ledger import LedgerService
from rlhf_dialog.runs.services.report import ReportService
from rlhf_dialog.runs.services.rescue import Rescue, failures_recorded
from rlhf_dialog.runs.services.trackers import TrackerService, check_packages
from rlhf_dialog.runs.services.validation import Validation, ValidationService
from rlhf_dialog.runs.settling import settle_config
from rlhf_dialog.training.simulated import Simulated
from rlhf_dialog.training.size_trial import settle_sizes
from rlhf_dialog.training.trainer import PPOTrainer
from rlhf_dialog.user_code import is_of_users

logger = logging.getLogger(__name__)


def _reward_class(function: Callable[..., Any]) -> dict[str, Any]:
    """The `reward_class` for a function, which is registered under its own name."""
    name = function_name(function)
    RewardFactory.register(name, partial(FunctionReward, function))
    return {"id": name}


class PPOAgent:
    """A PPO run from Python. Of several processes each has an agent and calls the same methods; rank 0 alone writes and asks.

    >>> agent = PPOAgent.from_config("nlp_ppo.yaml", model_path="./my_model")
    >>> agent.train(total_time_steps=100_000, use_wandb=True)
    >>> agent.save("./ppo_agent")
    """

    def __init__(
        self,
        config: Config,
        overwrite: bool = False,
        resume: bool | Literal["auto"] = False,
        weights_from: str | Path | None = None,
        reward: Callable[..., Any] | None = None,
        optimizer: NewOptimizer = new_optimizer,
        is_trial: bool = False,
    ):
        """`resume="auto"`: continue the run in the folder if there is one, else begin one.

        `reward`: a function in place of the `reward_class`, see `FunctionReward`. A run without a name is called `ppo`.
        `optimizer`: called with a trained module, the configuration and a learning rate; AdamW by default. `is_trial`: the run is
        a smoke test in a folder that is removed.
        """
        self.optimizer = optimizer
        self.reward = None if reward is None else FunctionReward(reward, config.env.args.columns)
        changed: dict[str, Any] = {"reward_class": _reward_class(reward)} if reward is not None else {}
        changed |= {"experiment_name": "ppo"} if config.experiment_name is None else {}
        self.config = strategy.settle(replace_keys(config, changed) if changed else config)
        self.start = Start(overwrite, resume, None if weights_from is None else Path(weights_from))
        self.is_trial = is_trial
        self.trainer: PPOTrainer | None = None
        self.services: tuple[Service, ...] = ()  # what accompanies the run while it has its lock
        self.trackers: TrackerService | None = None  # one of them
        self._identity: dict[str, Any] = {}

    @classmethod
    def from_config(
        cls,
        config: str | Path | Mapping[str, Any],
        reward: Callable[..., Any] | None = None,
        overwrite: bool = False,
        resume: bool | Literal["auto"] = False,
        optimizer: NewOptimizer = new_optimizer,
        **overrides: Any,
    ) -> "PPOAgent":
        """Read a YAML, or a dict of its keys; overrides are keys, dotted ones as `**{"env.args.data_path": "./data"}`."""
        if reward is not None:
            overrides["reward_class"] = _reward_class(reward)
        source = config if isinstance(config, Mapping) else find_config(str(config))
        return cls(load_config(source, overrides), overwrite, resume, reward=reward, optimizer=optimizer)

    @cached_property
    def world(self) -> World:
        """All processes of the run; the first use meets them."""
        return process_group.start(self.config)

    @property
    def run_folder(self) -> Path:
        return Path(os.path.expanduser(self.config.run_dir)) / str(self.config.experiment_name)

    def train(
        self, total_time_steps: int | None = None, use_wandb: bool | None = None, use_tensorboard: bool | None = None
    ) -> dict[str, float]:
        """Train to the end, leaving metrics, checkpoints and `agent/` in the run folder; returns the last metrics.

        Arguments that are given replace the keys of the same names. Raises UserError for what the user can correct, and
        RunStopped when a check of the run fails.
        """
        given = {"total_time_steps": total_time_steps, "use_wandb": use_wandb, "use_tensorboard": use_tensorboard}
        self.config = replace_keys(self.config, {key: value for key, value in given.items() if value is not None})
        with self.world.contact():
            self.check_outputs()
            self.start.settle(self.run_folder, self.world)
            self._check_folder()
        recorded = failures_recorded(self.config, self.run_folder, self.world, self.is_trial)
        metrics = Metrics()
        with recorded, self.world.contact(), contextlib.ExitStack() as stack:
            trainer = self.build(stack)
            stack.enter_context(disk_errors_as_user_errors(self.run_folder))
            stack.enter_context(self.world.contact())  # the services end with the error that it makes of a lost process
            assert self.trackers is not None
            run = PPORun(self.config, self.run_folder, trainer, self.is_trial, self.trackers.pause)
            checkpointer = RunCheckpointer(run, self.services, self._identity)
            checkpointer.begin(self.start)
            rescue = Rescue(run, self.services, checkpointer.save)
            for service in self.services:
                service.begin(run)
            while not run.done:
                with rescue.step():
                    metrics = trainer.step()
                with rescue.save_on_error(metrics):
                    after_iteration(run, self.services, metrics)
                end_iteration(run, self.services, checkpointer.is_due(), checkpointer.save)
            return_freed_memory()  # of updates, for merged weights
            self.save(self.run_folder / "agent")
        if not self.is_trial:
            logger.info("agent saved; talk to it: rlhf-dialog chat --agent %s", quote(str(self.run_folder / "agent")))
            with_system = (prompt.system for _, prompt in having(prompts_of(trainer.prompts), SYSTEM))
            if agent_config(trainer).system_prompt is None and any(with_system):
                logger.info(
                    'the system messages of the data differ, so the agent keeps none; give one: chat --system_prompt "..."'
                )
            if self.world.is_main:  # the others need not wait: nothing follows
                push_agent(self.config, self.run_folder)
        return metrics

    def check_outputs(self) -> None:
        """Check the packages and the place on the Hub to which the run writes; loads nothing."""
        self.world.on_main(lambda: check_packages(self.config))
        self.world.on_main(lambda: check_push(self.config))

    def _check_folder(self) -> None:
        self.world.on_main(lambda: self.start.check(self.run_folder, first_checkpoint(self.config)))

    def build(self, locks: contextlib.ExitStack | None = None) -> PPOTrainer:
        """The trainer with everything that a run needs; cheap checks first. Raises UserError as `train`.

        locks: in them the run folder is locked, and wandb opens, before the models are loaded
        """
        world = self.world
        self._warn_of_code()
        resumed = self.run_folder / "checkpoints" if self.start.resume else None
        config = self.config = settle_config(self.config, world, resumed)
        seed_rank(config.seed, world)
        batch_plan(config, world.size)
        check_placement(config, world.device)
        memory = warn_of_memory(config, world.device, world.size)
        world.on_main(lambda: warn_of_slow_bf16(config, world.device))
        with world.fail_together():
            reward = self.reward or self._build_reward()
            vec_info = VecInfoFactory.create(config.vec_info_class.id, config.vec_info_class.args)
        source, validation = read_source(config, reward, world)
        self._begin_rewards(reward, validation)
        if validation:
            world.on_main(validation.check)
        engine = EngineService(config, self.run_folder, world) if config.engine else None
        if locks:
            world.on_main(lambda: locks.enter_context(lock_folder(self.run_folder)))
            self._check_folder()  # for what another run has left there since
            self.trackers = TrackerService(config, self.run_folder, world, bool(self.start.resume))
            self.services = (*((engine,) if engine else ()), *self.build_services(validation, self.trackers))
            end_with(locks, self.services)
        with world.fail_together():
            models = load_models(config, world.device)
            encoder = prompt_encoder(
                models.tokenizer, config.turn_separator, config.max_prompt_length, config.system_prompt
            )
            source = source if isinstance(source, Simulated) else keep_with_room(encoder, source)
            reward.move_to(str(world.device))
            if validation:
                validation.prepare(encoder, str(world.device))
        return_freed_memory()  # of weights that were read in float32
        self._identity = identity.identity_of(config, models, prompts_of(source), reward)
        identity.refuse_other_ranks(config, self._identity, world)
        self.trainer = PPOTrainer(
            config,
            models,
            source,
            reward,
            vec_info,
            world,
            from_reference=self.start.weights_from is None,
            tell=self.trackers.show_position if self.trackers else silent,
            optimizer=self.optimizer,
        )
        if sizes := settle_sizes(self.trainer):
            self.config = replace_keys(config, sizes)
        if engine:
            engine.attach(self.trainer)
        report_size(self.trainer, source, validation, memory)
        return self.trainer

    def _warn_of_code(self) -> None:
        config = self.config
        if config.trust_remote_code:
            paths = {"model_path": config.model_path, "ref_model": config.ref_model}
            warn_of_remote_code(paths | {"env.args.tokenizer_path": config.env.args.tokenizer_path})

    def _begin_rewards(self, reward: BaseReward, validation: Validation | None) -> None:
        """Tell the rewards of the run where it is. Raises UserError for one that compares replies where there is one alone."""
        with self.world.fail_together():
            if self.config.num_responses_per_prompt < 2:
                check_alone(reward, "num_responses_per_prompt: 1")
            for one in (reward, *(validation.other_rewards() if validation else ())):
                one.begin_run(self.run_folder, self.config.seed, self.world.rank)

    def _build_reward(self) -> BaseReward:
        """The reward of the YAML; code of the user's that seeds or draws numbers does not change those of the run."""
        name, args = self.config.reward_class.id, self.config.reward_class.args
        nodes = [node for _, node in reward_nodes(self.config.reward_class.model_dump())]
        classes = [RewardFactory.find(node["id"]) for node in nodes]
        is_own = any(cls is not None and is_of_users(cls) for cls in classes) or any(
            COLON in node["id"] for node in nodes
        )
        with generators_of_users(self.config.seed, self.world) if is_own else contextlib.nullcontext():
            return build_reward(name, args, self.config.env.args.columns)

    def build_services(self, validation: Validation | None, trackers: TrackerService) -> tuple[Service, ...]:
        """What accompanies the run, in the order in which an iteration calls it. All ranks call it, under the lock."""
        config = self.config
        guard = None
        if config.guard and isinstance(validation, ValidationService):
            guard = RunGuard(config.guard.action, validation)
        export = f", or export an agent: rlhf-dialog export --run {self.run_folder} --output DIR"
        return (
            LedgerService(config, trackers.show_table),  # before anything can raise: a saved iteration has its rows
            *((validation,) if validation else ()),
            *((guard,) if guard else ()),  # reads what the validation has measured
            trackers,  # write the line with the metrics of all services above
            ReportService(config.report),  # reads that line
            Interrupts(config.grace_seconds, self.world.is_main, export),  # ends first, before what takes long
        )

    def save(self, folder: str | Path) -> None:
        """Write the trained agent, as `agent/` of the run folder holds it. Raises UserError before any training."""
        if self.trainer is None:
            raise UserError("there is nothing to save yet; call train() first")
        models = self.trainer.models
        with self.trainer.placement.whole_weights():
            config = agent_config(self.trainer)
            self.world.on_main(lambda: save_agent(Path(folder), models.policy, models.tokenizer, config))
