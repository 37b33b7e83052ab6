"""The cells of a table of dialogue policies: policy x error rate x seed, each a training that is measured on its way.

What decides the numbers of a cell is in `known_of`, and lies in its file; what only costs time (processes, budget) does not.
A cell is one process, one thread of torch, and random streams of its own: neither the order of the cells nor what runs beside
them changes a number.
"""

import inspect
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel, Field, model_validator

from rlhf_dialog.atomic_files import replace_file
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import as_read_again, damage_as_user_error, load_json
from rlhf_dialog.task_oriented.domains import MultiDomain
from rlhf_dialog.task_oriented.policies.base import DialoguePolicy, Episode, PolicyFactory, PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import build_handcrafted, build_policy
from rlhf_dialog.task_oriented.policies.sampling.measures import TEST_SEED, VALIDATION_SEED, collect_numbers
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from rlhf_dialog.task_oriented.runs.training_world import TrainingWorld, open_world

BASELINES, LANGUAGE_MODEL = ("random", "handcrafted"), "language_model"
IMITATION = "imitation"  # the network of ppo, fitted to dialogues of the handcrafted policy; it sees no reward
PACE, OTHER_PACES = (64, 8), {"ppo": (1024, 8), "gp_sarsa": (8, 2)}  # turns between two updates, dialogues side by side
TEST_ENVS, MAX_TURNS = 64, 25
LENGTH_DIALOGUES = 200  # of the handcrafted policy, from which the number of updates is estimated
FORMAT = 1


@dataclass(frozen=True)
class Cell:
    """One training. error_rate: 0 to 1, how often the user is misunderstood."""

    policy: str
    error_rate: float
    seed: int

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{quote(self.policy, safe='')}_{100 * self.error_rate:g}_{self.seed}.json"

    def __str__(self) -> str:
        return f"{self.policy} at {100 * self.error_rate:g} % error, seed {self.seed}"


Number = Annotated[float, Field(allow_inf_nan=False)]


class Tested(BaseModel):
    """A number of each test dialogue, equally many of each measure."""

    success: list[Number]
    reward: list[Number]
    turns: list[Number]

    @model_validator(mode="after")
    def _equally_many(self) -> Self:
        if not len(self.success) == len(self.reward) == len(self.turns) > 0:
            raise ValueError("success, reward and turns have not equally many numbers")
        return self


class Costs(BaseModel):
    """What a training has cost; None: nobody knows."""

    dialogues: Number | None
    turns: Number | None
    updates: Number | None
    cpu_seconds: Number | None
    wall_seconds: Number | None
    parameters: Number | None


class Point(BaseModel):
    """A measurement after a number of dialogues; `build_handcrafted`: of the rules, where it was measured beside them."""

    mark: int
    training: Costs
    test: Tested
    build_handcrafted: Tested | None = None


class MadeWith(BaseModel):
    """The versions that made a cell."""

    commit: str | None


class CellFile(BaseModel):
    """The file of a finished cell."""

    format_version: int
    known: dict[str, Any]
    made_with: MadeWith
    points: Annotated[list[Point], Field(min_length=1)]


@dataclass(frozen=True)
class Plan:
    """What all cells share. marks: dialogues after which a policy is measured, ascending; args: of a policy, by its name."""

    domain: str = "restaurant"
    user: str = "friendly"
    marks: tuple[int, ...] = (400, 1000, 4000)
    test_dialogues: int = 500
    args: dict[str, dict[str, Any]] = field(default_factory=dict)

    def scene(self, error_rate: float) -> TrainingWorld:
        """The environment. Raises UserError for a domain or a user that cannot be used."""
        found = open_world({"domain": self.domain, "error_rate": error_rate, "max_turns": MAX_TURNS, "user": self.user})
        if isinstance(found.domain, MultiDomain):
            raise UserError(f"--domain {self.domain}: has several domains; the table is for policies of one domain")
        return found

    def policy(self, name: str, setting: PolicySpec) -> Any:
        """The policy with its args. Raises UserError for an unknown name or wrong arguments."""
        return build_policy(_class_of(name), self.args.get(name, {}), setting)

    def known_of(self, cell: Cell, domain_hash: str) -> dict[str, Any]:
        """All that decides the numbers of a cell, as JSON."""
        batchsz, num_envs = OTHER_PACES.get(cell.policy, PACE)
        trained: dict[str, Any] = {"marks": list(self.marks)}
        if cell.policy != IMITATION:
            trained |= {"batchsz": batchsz, "num_envs": num_envs}
        args = defaults_of(cell.policy) | self.args.get(cell.policy, {})
        settings = {
            **{"policy": cell.policy, "error_rate": cell.error_rate, "seed": cell.seed},
            **{"args": args, "user": self.user, "max_turns": MAX_TURNS},
            **{"domain_hash": domain_hash, "test_dialogues": self.test_dialogues},
            **({} if cell.policy in BASELINES else trained),
        }
        return dict(as_read_again(settings))


def defaults_of(policy: str) -> dict[str, Any]:
    """The arguments that a registered policy takes, as far as they have defaults."""
    cls = PolicyFactory.find(_class_of(policy))
    parameters = inspect.signature(getattr(cls, "arguments", cls)).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}


def _class_of(policy: str) -> str:
    return "ppo" if policy == IMITATION else policy


def ordered(policies: Sequence[str], error_rates: Sequence[float], seeds: Sequence[int]) -> list[Cell]:
    """All cells: the first seed of everything comes first, so that a table that was interrupted is of use.

    The baselines depend on no seed, so they have the first one alone.
    """
    cells = [Cell(policy, error, seed) for seed in seeds for error in error_rates for policy in policies]
    return [cell for cell in cells if cell.seed == seeds[0] or cell.policy not in BASELINES]


def read_cell(folder: Path, cell: Cell, known: dict[str, Any]) -> dict[str, Any] | None:
    """The finished cell, or None. Raises UserError when its file is damaged, or was made with other settings than `known`."""
    path = folder / cell.file
    if not path.is_file():
        return None
    with damage_as_user_error(f"{path}: is damaged, remove it: "):
        content: dict[str, Any] = load_json(path, CellFile)
        then = content["known"]
        if content["format_version"] != FORMAT:
            raise ValueError(f"its format version is {content['format_version']}, this program reads {FORMAT}")
        marks = [point["mark"] for point in content["points"]]
        if marks != then.get("marks", marks):
            raise ValueError(f"it was measured after {marks} dialogues, not after {then['marks']}")
    names = sorted({*then, *known})
    changed = [
        f"{name}: {then.get(name)!r} -> {known.get(name)!r}" for name in names if then.get(name) != known.get(name)
    ]
    if changed:
        advice = "use its settings, another --output, or remove the file to train the cell again"
        raise UserError("\n  ".join([f"{path}: was made with other settings; {advice}:", *changed]))
    return content


def write_cell(folder: Path, cell: Cell, known: dict[str, Any], made_with: dict[str, Any], points: list[Any]) -> None:
    """Write a finished cell in one atomic step."""
    found = {"format_version": FORMAT, "known": known, "made_with": made_with, "points": points}
    replace_file(folder / cell.file, json.dumps(found) + "\n")


def train_cell(cell: Cell, plan: Plan) -> list[dict[str, Any]]:
    """Train and measure: one entry for each mark, or one for the mark 0 of a policy that does not learn.

    Each entry has `mark`, `training` (what it has cost so far) and `test` (for each measure the numbers of all test dialogues).
    """
    scene = plan.scene(cell.error_rate)
    batchsz, num_envs = OTHER_PACES.get(cell.policy, PACE)
    setting = PolicySpec(scene.num_features, len(scene.names), cell.seed, scene.domain)
    if cell.policy in BASELINES:
        policy, training = plan.policy(cell.policy, setting), _Training()
        return [_point(0, training, policy, scene, plan)]
    if cell.policy == IMITATION:
        return [_imitated(mark, setting, scene, plan) for mark in plan.marks]
    num_updates = expected_updates(scene, plan.marks[-1], batchsz)
    policy = plan.policy(cell.policy, replace(setting, num_updates=num_updates))
    points, training = [], _Training()
    with closing(Sampler(scene.make, cell.seed, num_envs)) as sampler:
        for mark in plan.marks:
            while training.dialogues < mark:
                training.iterate(sampler, policy, batchsz)
            points.append(_point(mark, training, policy, scene, plan))
    return points


def _imitated(mark: int, setting: PolicySpec, scene: TrainingWorld, plan: Plan) -> dict[str, Any]:
    """The entry after `mark` dialogues of the handcrafted policy."""
    from rlhf_dialog.task_oriented.policies.ppo import imitate

    training, policy = _Training(), plan.policy(IMITATION, setting)
    with training.timed():
        episodes = run_dialogues(build_handcrafted(setting), scene.make, setting.seed, range(mark), TEST_ENVS)
        training.metrics = imitate(policy, episodes, setting.seed)
    training.dialogues, training.turns, training.updates = mark, sum(map(len, episodes)), 1
    return _point(mark, training, policy, scene, plan)


def expected_updates(scene: TrainingWorld, dialogues: int, batchsz: int) -> int:
    """How often a policy is updated in a training of these dialogues if they are as long as those of the handcrafted policy.

    It is for schedules such as PPO's learning rate. Nobody knows the true number before: a policy that learns talks longer first.
    """
    rules = build_handcrafted(PolicySpec(scene.num_features, len(scene.names), 0, scene.domain))
    episodes = run_dialogues(rules, scene.make, VALIDATION_SEED, range(LENGTH_DIALOGUES), TEST_ENVS)
    return max(1, round(dialogues * sum(map(len, episodes)) / len(episodes) / batchsz))


def num_parameters(policy: Any) -> int:
    """How much is learned: the weights of all networks; of GP-SARSA the dictionary, and precision and mean of the posterior."""
    from torch import nn

    from rlhf_dialog.task_oriented.policies.gp_sarsa import GPSarsa

    if isinstance(policy, GPSarsa):
        return sum(block.points.size + block.precision.size + block.shift.size for block in policy.blocks)
    modules = [part for part in vars(policy).values() if isinstance(part, nn.Module)]
    sizes = {id(x): x.numel() for module in modules for x in module.parameters() if x.requires_grad}
    return sum(sizes.values())


class _Training:
    """What a training has cost so far; the seconds leave out the measuring."""

    def __init__(self) -> None:
        self.dialogues = self.turns = self.updates = 0
        self.cpu = self.wall = 0.0
        self.metrics: dict[str, float] = {}

    @contextmanager
    def timed(self) -> Iterator[None]:
        """What runs here is training."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu, self.wall = self.cpu + time.process_time() - cpu, self.wall + time.perf_counter() - wall

    def iterate(self, sampler: Sampler, policy: DialoguePolicy, batchsz: int) -> None:
        """Sample turns, and learn from them."""
        with self.timed():
            episodes: list[Episode] = sampler.sample(policy, batchsz)
            for episode in episodes:
                policy.observe(episode)
            self.metrics = policy.update() or self.metrics
        self.dialogues += sum(episode.ended for episode in episodes)
        self.turns, self.updates = self.turns + batchsz, self.updates + 1

    def costs(self, policy: DialoguePolicy) -> dict[str, Any]:
        """As JSON."""
        seconds = {"cpu_seconds": round(self.cpu, 3), "wall_seconds": round(self.wall, 3)}
        counts = {"dialogues": self.dialogues, "turns": self.turns, "updates": self.updates}
        return counts | seconds | {"parameters": num_parameters(policy), "metrics": self.metrics}


def _point(mark: int, training: _Training, policy: DialoguePolicy, scene: TrainingWorld, plan: Plan) -> dict[str, Any]:
    """An entry of `train_cell`. The test dialogues are the same for all policies and seeds, without exploration."""
    found = collect_numbers(run_dialogues(policy, scene.make, TEST_SEED, range(plan.test_dialogues), TEST_ENVS))
    test = {name: np.round(found[name], 6).tolist() for name in ("success", "reward", "turns")}
    return {"mark": mark, "training": training.costs(policy), "test": test}
