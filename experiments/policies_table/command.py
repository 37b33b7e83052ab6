"""Compare dialogue policies in one table: each policy at each error rate, trained with several seeds, measured on the way.

python -m experiments.policies_table --policies all --errors 0 15 30 --seeds 5 --budget 90m --output table.json
python -m experiments.policies_table --policies gp_sarsa dqn --errors 15 --seeds 2 --marks 100 400 --output small.json
python -m experiments.policies_table --policies all --seeds 3 --domain DIR --output own.json --markdown own.md
python -m experiments.policies_table --policies average_return --register examples/average_return.py --output average_return.json
python -m experiments.policies_table --policies dqn --args "{dqn: {lr: 5e-4}}" --first_seed 100 --output tried.json

random and handcrafted are always in the table; they are measured without training. All policies meet the same test dialogues,
which none is trained on. Intervals are 95 %, over seeds and dialogues. Written are OUTPUT, with each training and a summary,
and the learning curves beside it (.png).

Each policy x error rate x seed is one process with one thread. When it has ended, it lies in a folder beside the output
(table.cells): the same command goes on where it was interrupted, by Ctrl-C, a kill, or the end of --budget. Settings that change
numbers must then be the same; policies, error rates and seeds may be added.
"""

# What is heavy is imported where it is used: each process of the table imports this module.

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.progress import BarColumn, Progress, TextColumn

from experiments.policies_table.jobs import run_jobs
from experiments.policies_table.report import markdown, tables
from experiments.policies_table.rows import missing, rows_of, without_dialogues
from experiments.policies_table.table import (
    BASELINES,
    IMITATION,
    LANGUAGE_MODEL,
    Cell,
    Plan,
    ordered,
    read_cell,
    train_cell,
    write_cell,
)
from rlhf_dialog.atomic_files import replace_file, replace_json
from rlhf_dialog.commands.command_line import check_output
from rlhf_dialog.commands.options import REGISTER, Options, option, register, run_command
from rlhf_dialog.errors import RunStopped, SignalExit, UserError
from rlhf_dialog.runs.lock import lock_folder
from rlhf_dialog.runs.verification import sha256_of_file
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import BUILT_IN
from rlhf_dialog.task_oriented.policies.sampling.measures import VALIDATION_SEED
from rlhf_dialog.task_oriented.runs.settings import load_policy_config
from rlhf_dialog.terminal import Console

logger = logging.getLogger(__name__)
ALL = (*BUILT_IN, IMITATION)
UNITS = {"s": 1, "m": 60, "h": 3600}
KEPT = ("policies", "errors", "seeds", "first_seed", "marks", "test_dialogues", "user", "args", "register")
WIDTH = 150  # of tables that go to a file
Known = dict[str, Any]


class CellsFailed(RunStopped):
    """A process of the table has died, or its policy has raised."""

    exit_code = 1


class BenchmarkOptions(Options):
    description = __doc__
    policies: tuple[str, ...] = option(f"names, or all: {', '.join(ALL)}")
    errors: tuple[float, ...] = option("in percent; default 0 15 30", (0, 15, 30))
    seeds: int = option("trainings of each policy at each error rate; default 5", 5)
    first_seed: int = option("another number gives other trainings; default 0", 0)
    marks: tuple[int, ...] = option("dialogues; default 400 1000 4000", (400, 1000, 4000))
    domain: str = option("restaurant, or the path of a domain; default restaurant", "restaurant")
    user: str = option("friendly, unfriendly or fixed; default friendly", "friendly")
    test_dialogues: int = option("of each measurement; default 500", 500)
    args: str | None = option(
        "arguments of policies: a mapping, or a YAML or JSON file, {NAME: {KEY: VALUE}}", metavar="YAML"
    )
    register: str | None = option(REGISTER, metavar="FILE")
    language_model: Path | None = option("the row language_model, at 0 %", metavar="AGENT")
    processes: int = option("trainings at a time; it changes no result", os.cpu_count() or 1)
    budget: str | None = option("90m, 1h or 300s: no training begins after it")
    output: Path = option("JSON file to write")
    markdown: Path | None = option("the tables for a document", metavar="FILE")


def run(options: BenchmarkOptions) -> None:
    """Train and measure what is missing of the table, and write it."""
    seconds = _checked(options)
    if options.register:
        register(options.register)
    table = _Table(options)
    left = [cell for cell in table.cells if not table.read(cell)]
    with lock_folder(table.folder):
        try:
            table.train(left, seconds)
        except (KeyboardInterrupt, SignalExit):
            logger.info("finished trainings are in %s; the same command goes on from there", table.folder)
            raise
        finally:
            table.report()


def _checked(options: BenchmarkOptions) -> float:
    """The seconds of the budget. Raises UserError for options that cannot be used."""
    for name, least in (("seeds", 1), ("test_dialogues", 1), ("processes", 1)):
        if getattr(options, name) < least:
            raise UserError(f"--{name.replace('_', '-')}: found {getattr(options, name)}, wanted {least} or more")
    if not 0 <= options.first_seed <= VALIDATION_SEED - options.seeds:
        raise UserError(
            f"--first_seed: found {options.first_seed}, wanted 0 to {VALIDATION_SEED - options.seeds}; above are the seeds of "
            "dialogues that no training meets"
        )
    if not all(0 <= error <= 100 for error in options.errors):
        raise UserError(f"--errors: found {list(options.errors)}, wanted percent from 0 to 100, such as 0 15 30")
    if finer := [error for error in options.errors if float(f"{error:g}") != error]:
        raise UserError(f"--errors: found {finer[0]!r}, wanted 6 digits at most, such as 12.5")
    if min(options.marks) < 1:
        raise UserError(f"--marks: found {list(options.marks)}, wanted numbers of dialogues, such as 400 1000 4000")
    for name in ("output", "markdown"):
        if path := getattr(options, name):
            check_output(name, path, str(path))
    if options.output.suffix in (".png", ".cells"):
        raise UserError(f"--output: '{options.output}' is the name of the plot or the cells; end it in .json")
    if options.markdown in (options.output, options.output.with_suffix(".png")):
        raise UserError(f"--markdown: '{options.markdown}' is written by --output already; name another file")
    if LANGUAGE_MODEL in options.policies:
        raise UserError(f"--policies: leave {LANGUAGE_MODEL} out; --language_model RUN/agent adds its row")
    if options.budget is None:
        return float("inf")
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]+)?)([smh])", options.budget)
    if not found:
        raise UserError(f"--budget: found '{options.budget}', wanted a time such as 90m, 1h or 300s")
    return float(found[1]) * UNITS[found[2]]


def _args(given: str | None) -> dict[str, dict[str, Any]]:
    """Arguments by the name of the policy. Raises UserError for anything else than such a mapping."""
    if given is None:
        return {}
    text = Path(given).read_text(encoding="utf-8") if Path(given).is_file() else given
    try:
        arguments = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"--args: cannot be read as YAML or JSON: {error}") from error
    if not isinstance(arguments, dict) or not all(isinstance(own, dict) for own in arguments.values()):
        raise UserError(f"--args: found {given!r}, wanted a mapping such as {{dqn: {{lr: 0.001}}}}, or a file with one")
    return {
        str(name): load_policy_config(None, {"policy": {"id": str(name), "args": own}}).policy.args
        for name, own in arguments.items()
    }


def _cells(options: BenchmarkOptions) -> list[Cell]:
    """All cells of the table, in their order; the baselines come first."""
    names = [own for name in options.policies for own in (ALL if name == "all" else [name])]
    rates = [error / 100 for error in dict.fromkeys(options.errors)]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    cells = ordered(list(dict.fromkeys([*BASELINES, *names])), rates, seeds)
    if not options.language_model:
        return cells
    from experiments.policies_table.language_model import language_model_cell

    return [*cells, language_model_cell(options.language_model, rates)]


def make_cell(cell: Cell, plan: Plan, known: Known, made_with: Known, folder: Path, options: BenchmarkOptions) -> None:
    """Train, measure and write one cell; what a process of the table does."""
    if options.register:
        register(options.register)
    if options.language_model and cell.policy == LANGUAGE_MODEL:
        from experiments.policies_table.language_model import measure_language_model

        points = measure_language_model(options.language_model, plan)
    else:
        points = train_cell(cell, plan)
    write_cell(folder, cell, known, made_with, points)


class _Table:
    """The cells of the options, with what decides the numbers of each, and the folder where they are.

    Raises UserError for a name, an argument, a domain or a user that cannot be used.
    """

    def __init__(self, options: BenchmarkOptions):
        self.options, self.cells, self.folder = options, _cells(options), options.output.with_suffix(".cells")
        marks = tuple(sorted(set(options.marks)))
        self.plan = Plan(options.domain, options.user, marks, options.test_dialogues, _args(options.args))
        self.scene = self.plan.scene(self.cells[0].error_rate)
        names = {cell.policy for cell in self.cells}
        for name in sorted(names - {LANGUAGE_MODEL}):
            self.plan.policy(name, PolicySpec(self.scene.num_features, len(self.scene.names), 0, self.scene.domain))
        if unused := sorted(set(self.plan.args) - names):
            raise UserError(
                f"--args: {', '.join(unused)} is not in the table; add it to --policies, or leave its arguments out"
            )
        self.known = {cell: self._known(cell) for cell in self.cells}

    def read(self, cell: Cell) -> Known | None:
        """The finished cell, or None. Raises UserError when it has other settings."""
        return read_cell(self.folder, cell, self.known[cell])

    def train(self, cells: list[Cell], seconds: float) -> None:
        """Make these cells, as far as the budget goes. Raises CellsFailed, with what went wrong."""
        from benchmarks.versions import versions

        made_with, deadline = versions(), time.monotonic() + seconds
        failed: dict[str, str] = {}

        def jobs() -> Iterator[tuple[Cell, Callable[[], None]]]:
            for cell in cells:
                if time.monotonic() < deadline and cell.policy not in failed:
                    yield (
                        cell,
                        partial(make_cell, cell, self.plan, self.known[cell], made_with, self.folder, self.options),
                    )

        there = len(self.cells) - len(cells)
        logger.info("%d of %d trainings are there already; cells: %s", there, len(self.cells), self.folder)
        with _Bar(cells, self.options.processes) as bar, closing(run_jobs(jobs(), self.options.processes)) as ended:
            for cell, failure in ended:
                if failure:
                    failed[cell.policy] = f"{cell}: {failure}"
                    logger.error("%s", failed[cell.policy])
                elif found := self.read(cell):
                    bar.done(cell, found)
        if failed:
            raise CellsFailed(
                f"{', '.join(failed)}: a training has failed, see above; the others are kept. Correct it, and give the same "
                "command"
            )

    def report(self) -> None:
        """Write JSON, plot and Markdown of the cells that are there, show the tables, and name what is missing."""
        from experiments.policies_table.curves import plot_curves
        from rlhf_dialog.evaluation.report import finite

        cells = [found for cell in self.cells if (found := self.read(cell))]
        left_out = missing([(cell.policy, cell.error_rate, cell.seed) for cell in self.cells], cells)
        for line in left_out:
            logger.warning("missing: %s", line)
        if not cells:
            return
        rows, output, dialogues = rows_of(cells), self.options.output, self.options.test_dialogues
        commits = sorted({str(cell["made_with"]["commit"]) for cell in cells})
        if len(commits) > 1:
            logger.warning("the cells were made with several commits: %s", ", ".join(commits))
        result: dict[str, Any] = {
            "domain": self.scene.name,
            "settings": {name: getattr(self.options, name) for name in KEPT},
        }
        result |= {"commits": commits, "missing": left_out, "summary": rows, "cells": without_dialogues(cells)}
        replace_json(output, finite(result))
        plot_curves(rows, f"{self.scene.name}: means over the seeds with 95 % intervals", output.with_suffix(".png"))
        console = Console()
        console = console if console.is_terminal else Console(width=WIDTH)
        for table in tables(rows, dialogues):
            console.print(table)
        if self.options.markdown:
            replace_file(self.options.markdown, markdown(rows, dialogues))
        written = output, output.with_suffix(".png"), self.options.markdown
        logger.info("written: %s", ", ".join(str(path) for path in written if path))

    def _known(self, cell: Cell) -> Known:
        agent = self.options.language_model
        if agent is None or cell.policy != LANGUAGE_MODEL:
            file = self.options.register if cell.policy not in ALL else None
            own = {"register": sha256_of_file(Path(file))} if file else {}
            return self.plan.known_of(cell, self.scene.hash) | own
        from experiments.policies_table.language_model import known_of

        return known_of(agent, self.plan, self.scene.hash)


class _Bar:
    """Progress, and how long the rest will take: as long as the same policy has taken so far, else as the mean of all cells."""

    def __init__(self, cells: list[Cell], processes: int):
        console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} {task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("trainings", total=len(cells), left="")
        self.left, self.processes, self.taken = list(cells), processes, dict[str, list[float]]()
        self.begin = time.monotonic()

    def __enter__(self) -> "_Bar":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def done(self, cell: Cell, found: Known) -> None:
        """Show that a cell is there, and what its policy has reached."""
        last = found["points"][-1]
        self.left.remove(cell)
        self.taken.setdefault(cell.policy, []).append(last["training"]["wall_seconds"] or 0.0)
        success, reward = (sum(last["test"][name]) / len(last["test"][name]) for name in ("success", "reward"))
        logger.info(
            "%s: success %.1f %%, reward %.2f; left: %d, %s", cell, 100 * success, reward, len(self.left), self.rest
        )
        self.progress.update(self.task, advance=1, left=self.rest)

    @property
    def rest(self) -> str:
        """The time that is left, in words."""
        means = {name: sum(own) / len(own) for name, own in self.taken.items()}
        usual = (time.monotonic() - self.begin) * self.processes / sum(map(len, self.taken.values()))
        seconds = sum(means.get(cell.policy, usual) for cell in self.left) / self.processes
        return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {seconds:.0f} s"


main = partial(run_command, BenchmarkOptions, run)  # the command line; returns the exit code
