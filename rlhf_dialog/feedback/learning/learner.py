"""The training of one night, and the state that it continues: weights, Adam's moments, schedule, random states, consumed events.

The state lies beside a version in `learner/`, as safetensors and JSON. The same files, with how far the night has come, are
written into `night/` while it trains, so that a killed night goes on where it was.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.data.chat_template import keep_with_room
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed import random_states as torch_states
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.feedback.learning import losses as formulas
from rlhf_dialog.feedback.learning import tokenized_examples as tokenized
from rlhf_dialog.feedback.store.bot import FIRST, Bot
from rlhf_dialog.feedback.store.examples import TrainingSet, liked_examples
from rlhf_dialog.feedback.store.settings import BotSettings
from rlhf_dialog.json_files import load_json
from rlhf_dialog.models.chat_agent import ChatAgent, read_settings
from rlhf_dialog.models.lora import add_adapters, trainable_parameters, warn_of_untrained_end
from rlhf_dialog.models.policy import DisabledAdapter, Policy
from rlhf_dialog.models.precision import autocast_of, set_float32_products
from rlhf_dialog.models.weights import load_module, save_module
from rlhf_dialog.runs.checkpoint import as_user_error
from rlhf_dialog.runs.training_state import load_optimizer, save_optimizer
from rlhf_dialog.runs.verification import sha256_of_file

logger = logging.getLogger(__name__)
LONGEST = 2  # times the first version's max_new_tokens: how long replies may become
STATE, FORMAT = "learner.json", 1
LEAST_WARMUPS = 3  # steps of a bot's first night, in warm-ups
GOLDEN_RATIO = (1 + 5**0.5) / 2
RATE_OF_A_MILLION, LORA_FACTOR = 2e-4, 10  # searched for: experiments/LOG.md, 2026-11-27
Step = dict[str, list[int]]  # the numbers of the answers, pairs and SFT rows of one optimizer step
Watch = Callable[[int, int], None]  # called with the steps done and all steps
Save = Callable[[], None]
GoesOn = Callable[[], bool]


def load_version(bot: Bot, version: str, settings: BotSettings) -> ChatAgent:
    """The agent of a version. Raises UserError when it does not load."""
    try:
        agent = ChatAgent.load(bot.agent_folder(version), device=settings.device)
    except UserError as error:
        raise UserError(
            f"{bot.folder}: version {version} cannot be loaded ({error.with_location('', '--agent')}); go back to another one "
            "with `feedback rollback`"
        ) from error
    set_float32_products(settings, agent.policy.lm.device)
    agent.policy.use_amp, agent.policy.amp_dtype = autocast_of(settings, agent.policy.lm.device).values()
    return agent


@dataclass
class NightState:
    """How far a night has come; `night/` keeps it as JSON beside the learner, so that a killed night goes on to the same bits."""

    fingerprint: str | None  # of the snapshot; None of a candidate, so that a night may use the same feedback
    last_event: int
    last_turn: int | None  # when it began; None: all
    plan: list[Step]
    done: int = 0  # steps of the plan
    sums: dict[str, float] = field(default_factory=dict)  # of the metrics of these steps
    surprises: list[tuple[int, float]] = field(default_factory=list)  # by steps: nats per held-out liked reply


class Learner:
    """The policy that a night trains from the champion, beside the fixed first version.

    The next night continues `optimizer`, `num_steps` (of the bot's life), `num_nights`, `random` (the states of the generators)
    and `consumed` (the events of earlier nights).
    """

    def __init__(self, bot: Bot, settings: BotSettings):
        """Raises UserError when the champion, its state or the first version does not load."""
        self.settings, self.version = settings, bot.champion()
        first = load_version(bot, FIRST, settings)
        if settings.use_lora:
            self.agent, self.policy = first, _with_adapter(first, settings)
            self.reference_policy: Policy = DisabledAdapter(first.policy.lm, use_amp=first.policy.use_amp)
        else:
            self.agent = load_version(bot, self.version, settings)
            self.policy, self.reference_policy = self.agent.policy, first.policy.requires_grad_(False)
        self.first_max_new_tokens = first.settings.max_new_tokens
        self.agent.set_max_new_tokens(read_settings(bot.agent_folder(self.version)).max_new_tokens)
        self.encoder = tokenized.ExampleEncoder(self.agent)
        size = settings.per_device_microbatch_size
        setting = f"{FIRST}, {first.policy.lm.device.type}, use_amp {first.policy.use_amp}"
        self.reference = tokenized.ReferenceLogprobs(
            self.reference_policy, self.encoder.encoder.pad_id, size, bot.folder / "reference.json", setting
        )
        self.parameters = list(trainable_parameters(self.policy).values())
        num_parameters = sum(parameter.numel() for parameter in self.policy.lm.parameters())
        self.learning_rate = settings.learning_rate or rate_by_size(num_parameters, settings.use_lora)
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.learning_rate, weight_decay=settings.weight_decay, eps=1e-5
        )
        self.num_steps = self.num_nights = 0
        self.consumed: frozenset[int] = frozenset()
        with torch_states.random_states_kept():
            torch_states.seed_everything(settings.seed)
            self.random = torch_states.random_states()
        source = bot.version_folder(self.version) / "learner"
        if source.is_dir():
            self.load(source)
        elif settings.use_lora and self.version != FIRST:
            raise _other_kind(source, settings)

    # --- state ---

    def save(self, folder: Path, more: dict[str, Any] | None = None) -> None:
        """Write the state into the folder, which exists; `more` goes into its JSON. Raises OSError and SafetensorError."""
        save_module(self.policy, folder / _weights(self.settings))
        groups = save_optimizer(self.optimizer, folder / "optimizer.safetensors")
        save_file(self.random[0], folder / "random.safetensors")
        files = {path.name: sha256_of_file(path) for path in sorted(folder.glob("*.safetensors"))}
        state = {"format_version": FORMAT, "num_steps": self.num_steps, "num_nights": self.num_nights, "groups": groups}
        state |= {"consumed": sorted(self.consumed), "random": self.random[1], "files": files, **(more or {})}
        write_json(folder / STATE, state)

    def load(self, folder: Path) -> dict[str, Any]:
        """Restore a state; returns its JSON. Raises UserError when it is damaged, or of other settings."""
        state = read_state(folder)
        if _weights(self.settings) not in state["files"]:
            raise _other_kind(folder, self.settings)
        remedy = "go back to another version with `feedback rollback`"
        if self.settings.use_lora:
            remedy = f"set lora_r and lora_target_modules back in config.yaml if they were changed, or {remedy}"
        with as_user_error(folder, lambda _: f"; {remedy}"):
            for name, digest in state["files"].items():
                if sha256_of_file(folder / name) != digest:
                    raise ValueError(f"{name} has changed since it was written (SHA-256)")
            load_module(self.policy, folder / _weights(self.settings), self.policy.lm.device)
            load_optimizer(self.optimizer, folder / "optimizer.safetensors", state["groups"])
            self.random = (load_file(folder / "random.safetensors"), state["random"])
            self.num_steps, self.num_nights = int(state["num_steps"]), int(state["num_nights"])
            self.consumed = frozenset(state["consumed"])
        return state

    def load_agent(self, folder: Path) -> None:
        """Take the weights of an agent. Raises UserError when its network or vocabulary is not that of the champion."""
        agent = ChatAgent.load(folder, device=self.settings.device)
        own, other = self.policy.lm.state_dict(), agent.policy.lm.state_dict()
        shapes = ({name: x.shape for name, x in weights.items()} for weights in (own, other))
        words = (one.encoder.tokenizer.get_vocab() for one in (self.agent, agent))
        if any(ours != theirs for ours, theirs in (shapes, words)):
            raise UserError(
                f"--agent: '{folder}' has another network or vocabulary than version {self.version}; train it from the agent in "
                f"versions/{self.version}"
            )
        self.policy.lm.load_state_dict(other)

    def lengthen_replies(self, training: TrainingSet) -> str:
        """Raise the agent's max_new_tokens to the longest liked reply, at most to LONGEST times that of the first version.

        A shorter one would cut off what a night teaches. It stays where prompts take all other positions. Returns what was
        changed, as text, or "".
        """
        liked, before = liked_examples(training), self.agent.settings.max_new_tokens
        lengths = [len(self.encoder.encode_example(one)[0].response) for one in liked]
        wanted = min(max(lengths, default=0), LONGEST * self.first_max_new_tokens)
        self.agent.set_max_new_tokens(max(wanted, before))
        if (after := self.agent.settings.max_new_tokens) == before:
            return ""
        num_long = sum(length > before for length in lengths)
        return f"max_new_tokens: {before} -> {after}, as {num_long} of {len(liked)} liked replies are longer"

    def sft_prompts(self, split: str) -> list[Dialogue]:
        """The prompts of a split of the SFT data that have a reply, and room; none without such data."""
        settings, agent = self.settings, self.agent.settings
        if settings.sft_data_path is None:
            return []
        columns = tuple(settings.sft_columns.items())
        found = tokenized.sft_prompts(settings.sft_data_path, split, agent.context_size, agent.turn_separator, columns)
        return list(keep_with_room(self.agent.encoder, found))

    # --- training ---

    def plan(self, training: TrainingSet, num_sft: int) -> list[Step]:
        """Which examples each optimizer step of a night sees, drawn from the random states, which move on.

        Each step has its share of answers, pairs and rows of the SFT data; each kind comes in shuffled passes.
        """
        sizes = NightSizes.of(self.settings, training.weight, self.num_steps)
        frequencies = {
            "answers": sizes.frequencies(training.weights_of(training.answers)),
            "pairs": sizes.frequencies(training.weights_of(training.pairs)),
            "sft": torch.ones(num_sft, dtype=torch.float64),
        }
        wanted = {kind: math.ceil(round(sizes.passes * one.sum().item(), 6)) for kind, one in frequencies.items()}
        wanted["sft"] = sizes.num_sft
        with torch_states.random_states_kept():
            torch_states.restore_random_states(*self.random)
            parts = {kind: _shuffle(one, wanted[kind]).tensor_split(sizes.steps) for kind, one in frequencies.items()}
            self.random = torch_states.random_states()
        return [{kind: part[i].tolist() for kind, part in parts.items()} for i in range(sizes.steps)]

    def train(
        self,
        training: TrainingSet,
        sft: Sequence[Dialogue],
        night: NightState,
        watch: Watch,
        save: Save,
        goes_on: GoesOn,
    ) -> dict[str, float]:
        """Make the steps of the plan that are not done, and count them in `night`; while `goes_on`, those of the plan again.

        `save` is called every `checkpoint_steps`. Returns the number of steps, and the means over them.
        Raises RunStopped when a loss is not finite.
        """
        batches = Batches(self, training, sft, night.plan)
        while night.done < len(night.plan) or goes_on():
            for name, value in self._step(batches, night.plan[night.done % len(night.plan)]).items():
                night.sums[name] = night.sums.get(name, 0.0) + value
            night.done += 1
            watch(night.done, max(night.done, len(night.plan)))
            if night.done % self.settings.checkpoint_steps == 0 and night.done != len(night.plan):
                save()
        return {"steps": night.done, **{name: value / night.done for name, value in night.sums.items()}}

    def _step(self, batches: "Batches", step: Step) -> dict[str, float]:
        """One optimizer step: the weighted losses of its examples, by their number and the mean weight of the night."""
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * min(1.0, (self.num_steps + 1) / max(settings.warmup_steps, 1))
        count, totals = sum(map(len, step.values())), dict.fromkeys(("loss", "kto", "dpo", "nll", "kl_baseline"), 0.0)
        for name, losses, weight in batches.losses(step):
            loss = weight * losses.sum() / (batches.mean_weight * count)
            loss.backward()
            kind = KINDS[name]
            totals[name] += losses.sum().item() / (batches.mean_weights[kind] * max(len(step[kind]), 1))
            totals["loss"] += loss.item()
        totals["kl_baseline"] = batches.baseline
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, settings.max_grad_norm).item()
        if not (math.isfinite(totals["loss"]) and math.isfinite(norm)):
            self.optimizer.zero_grad()
            raise RunStopped(
                f"step {self.num_steps + 1}: the loss is {totals['loss']:g} and the norm of its gradient {norm:g}; nothing was "
                f"promoted. Lower learning_rate in config.yaml; it was {self.learning_rate:.2g}"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_steps += 1
        return {**totals, "grad_norm": norm}


KINDS = {"kto": "answers", "dpo": "pairs", "nll": "sft"}


class Batches:
    """The losses of the examples of a night, each times the weight of its row. `baseline`: KTO's z_ref in the newest step.

    `mean_weights`: of the rows of each kind that the steps see, and `mean_weight` of all, by which losses are divided. These are
    constants of the night, so that a batch with little weight counts little.
    """

    def __init__(self, learner: Learner, training: TrainingSet, sft: Sequence[Dialogue], plan: Sequence[Step]):
        self.policy, self.reference, self.settings = learner.policy, learner.reference, learner.settings
        self.encoder, self.pad_id, self.sft, self.baseline = learner.encoder, learner.encoder.encoder.pad_id, sft, 0.0
        self.rows = learner.encoder.encode_rows(training.all)
        self.reference.add(self.rows)
        self.answers = [name for one in training.answers for name in tokenized.row_names(one)]
        self.pairs = [tokenized.row_names(one) for one in training.pairs]
        self.liked = torch.tensor([one.liked for one in training.answers], dtype=torch.bool)
        weights = torch.tensor(training.weights_of(training.answers), dtype=torch.float64)
        liked, disliked = (weights[self.liked == label].sum().item() for label in (True, False))
        self.balance = formulas.balance_weights(
            liked, disliked, self.settings.desirable_weight, self.settings.undesirable_weight
        )
        sizes = NightSizes.of_steps(self.settings, training.weight, len(plan))
        self.weights = {
            "answers": sizes.step_weights(weights.tolist()),
            "pairs": sizes.step_weights(training.weights_of(training.pairs)),
            "sft": torch.ones(len(sft), dtype=torch.float64),
        }
        seen = {kind: weights[[i for step in plan for i in step[kind]]] for kind, weights in self.weights.items()}
        self.mean_weights = {kind: weights.mean().item() if len(weights) else 1.0 for kind, weights in seen.items()}
        self.mean_weight = torch.cat([*seen.values()]).mean().item()

    def losses(self, step: Step) -> Iterator[tuple[str, Tensor, float]]:
        """For each microbatch: the name of its loss, the weighted losses of its examples (b,), and the weight of their kind."""
        size, device = self.settings.per_device_microbatch_size, self.policy.lm.device
        self.baseline = self._baseline(step["answers"])
        beta, liked_weight = self.settings.beta, self.settings.liked_weight
        for part in _cut(step["answers"], size):
            liked, weights = self.liked[part].to(device), self.weights["answers"][part].to(device)
            log_ratios, nll = self._log_ratios([self.answers[i] for i in part])
            baseline, (desirable, undesirable) = torch.tensor(self.baseline), self.balance
            kto = formulas.kto_losses(log_ratios, liked, baseline, beta, desirable, undesirable)
            yield "kto", weights.to(kto) * (kto + liked_weight * torch.where(liked, nll, 0.0)), 1.0
        for part in _cut(step["pairs"], max(1, size // 2)):
            log_ratios, nll = self._log_ratios([self.pairs[i][side] for side in (0, 1) for i in part])
            chosen, rejected = log_ratios.chunk(2)
            dpo = formulas.dpo_losses(chosen, rejected, beta)
            weights = self.weights["pairs"][part].to(dpo)
            yield "dpo", weights * (dpo + liked_weight * nll[: len(part)]), self.settings.dpo_weight
        for part in _cut(step["sft"], size):
            rows = [self.encoder.encode_reply(self.sft[i]) for i in part]
            lengths = torch.tensor([len(row.response) for row in rows], device=device)
            yield "nll", -tokenized.compute_logprobs(self.policy, rows, self.pad_id) / lengths, 1.0

    def _log_ratios(self, names: list[str]) -> tuple[Tensor, Tensor]:
        """The log-ratios of these rows, and their losses of likelihood per token."""
        rows = [self.rows[name] for name in names]
        own = tokenized.compute_logprobs(self.policy, rows, self.pad_id)
        lengths = torch.tensor([len(row.response) for row in rows], device=own.device)
        return own - self.reference.get(names).to(own), -own / lengths

    def _baseline(self, numbers: list[int]) -> float:
        """KTO's z_ref of one step: of each of its prompts with the answer to the one before it, as in TRL; 0 of a single one.

        Each counts by its weight. Prompts of equal weight stand together, so that those of a person above the cap get that
        person's answers.
        """
        if len(numbers) < 2:
            return 0.0
        numbers = sorted(numbers, key=self.weights["answers"].tolist().__getitem__)
        rows = [self.rows[self.answers[i]] for i in numbers]
        mixed = [tokenized.TokenizedExample(row.prompt, rows[i - 1].response) for i, row in enumerate(rows)]
        size = self.settings.per_device_microbatch_size
        policies = (self.policy, self.reference.policy)
        own, first = (tokenized.compute_logprobs_in_batches(policy, mixed, self.pad_id, size) for policy in policies)
        weights = self.weights["answers"][numbers] / self.mean_weights["answers"]
        return formulas.kl_baseline(weights * (own - first)).item()


def rate_by_size(num_parameters: int, use_lora: bool) -> float:
    """The learning rate of a night: it falls with the square root of the model's size; adapters need a larger one.

    >>> rate_by_size(1_000_000, use_lora=False)
    0.0002
    """
    return RATE_OF_A_MILLION * math.sqrt(1e6 / num_parameters) * (LORA_FACTOR if use_lora else 1)


@dataclass(frozen=True)
class NightSizes:
    """How long a night is, by the weight of its examples: a person above the cap makes no night longer."""

    steps: int  # of the optimizer
    passes: float  # over the examples of weight 1
    num_sft: int  # rows of the SFT data

    @classmethod
    def of(cls, settings: BotSettings, weight: float, num_steps_before: int) -> "NightSizes":
        """Of a night with examples of this weight, of a bot that has made so many steps.

        Until these are LEAST_WARMUPS warm-ups, a night is as long as that takes: a shorter one changes almost no answer.
        """
        least = LEAST_WARMUPS * settings.warmup_steps - num_steps_before
        return cls.of_steps(settings, weight, settings.steps or max(_steps_by_weight(settings, weight), least))

    @classmethod
    def of_steps(cls, settings: BotSettings, weight: float, steps: int) -> "NightSizes":
        """Of a night with so many steps."""
        total = max(1, round(settings.epochs * weight))
        if settings.steps is not None or steps != _steps_by_weight(settings, weight):
            total = steps * settings.batch_size
        share = settings.sft_share / (1 - settings.sft_share)
        return cls(steps, total / weight if weight else 0.0, round(total * share))

    def frequencies(self, weights: Sequence[float]) -> Tensor:
        """The share of the passes in which each example is (N,): its weight, and at least one pass of the night."""
        return torch.tensor(weights, dtype=torch.float64).clamp(min=1 / max(1, math.floor(self.passes)))

    def step_weights(self, weights: Sequence[float]) -> Tensor:
        """What each example weighs in a step that sees it (N,), so that all steps together give it its weight."""
        return torch.tensor(weights, dtype=torch.float64) / self.frequencies(weights)


def _steps_by_weight(settings: BotSettings, weight: float) -> int:
    return max(1, round(max(1, round(settings.epochs * weight)) / settings.batch_size))


def _with_adapter(first: ChatAgent, settings: BotSettings) -> Policy:
    lm = first.policy.lm
    add_adapters(lm, ["policy"], settings.lora_r, settings.lora_alpha, settings.lora_target_modules, settings.seed)
    warn_of_untrained_end(lm, first.encoder.tokenizer, first.settings.turn_separator)
    policy = Policy(lm, use_amp=first.policy.use_amp, adapter="policy").to(lm.device).eval()
    policy.num_ids = first.policy.num_ids
    return policy


def _weights(settings: BotSettings) -> str:
    return "adapter.safetensors" if settings.use_lora else "weights.safetensors"


def _other_kind(folder: Path, settings: BotSettings) -> UserError:
    was = "without" if settings.use_lora else "with"
    return UserError(
        f"use_lora: {settings.use_lora}, but {folder.parent} was trained {was} adapters; set it back in config.yaml, or begin "
        "a new bot with this version's agent"
    )


def _shuffle(frequencies: Tensor, count: int) -> Tensor:
    """`count` numbers below N in shuffled passes, from torch's random state, each in its share of the passes (N,)."""
    places = (
        torch.arange(len(frequencies), dtype=torch.float64) * GOLDEN_RATIO % 1
    )  # so that the passes are equally long
    passes = [torch.empty(0, dtype=torch.long)]
    while sum(map(len, passes)) < count and len(frequencies):
        after = places + frequencies
        found = torch.nonzero(after.floor() > places.floor()).flatten()
        passes.append(found[torch.randperm(len(found))])
        places = after
    return torch.cat(passes)[:count]


def _cut(numbers: list[int], size: int) -> Iterator[list[int]]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


def read_state(folder: Path) -> dict[str, Any]:
    """The JSON of a state. Raises UserError when it is damaged, or newer than this program."""
    with as_user_error(folder, lambda _: "; go back to another version with `feedback rollback`"):
        state = load_json(folder / STATE)
        if state["format_version"] > FORMAT:
            raise UserError(
                f"{folder}: has format version {state['format_version']}, but this program reads up to {FORMAT}; update "
                "rlhf-dialog"
            )
        _ = state["files"], state["consumed"], state["random"], state["num_steps"], state["num_nights"]
    return dict(state)
