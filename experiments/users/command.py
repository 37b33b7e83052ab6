"""Compare simulated users with real ones: how long they talk, what they say, how varied, and whether a classifier knows them.

python -m experiments.users --data_path data/camrest --users agenda corpus --output users.json
python -m experiments.users --data_path data/dailydialog --users language_model corpus --model runs/dailydialog_sft \\
    --output users.json

The dialogues of the data are divided at random. One half is what the simulated users are compared with; the other half gives
them goals, first turns, and for `corpus`, the control, all that they say. Printed are a table for each kind of user and where
it differs, the largest standardised difference first. users.json has all numbers, users.png the plot beside it.

Before anything is counted, letters become lower case and marks are separated from words; marks but for the question mark
are left out of counts and of the classifier, because they depend on who wrote the data down.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from experiments.users import fidelity, user_talks
from experiments.users.model_words import LMWords
from experiments.users.two_sample import FOLDS, check_scikit_learn, distinguished
from experiments.users.user_talks import Talks
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.commands.command_line import check_device, check_output, check_seed
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.data.sources import SPLITS, DialogueRecord, load_records
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.report import finite
from rlhf_dialog.task_oriented.domains import Domain, load_domain
from rlhf_dialog.task_oriented.domains.loading import DATA_BASE
from rlhf_dialog.task_oriented.world.users.language_model import load_responder
from rlhf_dialog.task_oriented.world.words import user_words
from rlhf_dialog.terminal import Console

logger = logging.getLogger(__name__)
USERS = ("agenda", "agenda_in_model_words", "language_model", "corpus")
SAMPLING = ("turn_separator", "max_prompt_length", "max_new_tokens", "temperature", "top_p")
OF_MODELS = "of --model and --partner; default: as their folders say"
LEAST = 10  # dialogues of each kind


class CompareUsersOptions(Options):
    description = __doc__
    data_path: str = option("real dialogues, whose first speaker is the user: any data source")
    splits: tuple[str, ...] = option("default: validation test", ("validation", "test"), choices=SPLITS)
    users: tuple[str, ...] = option("the simulated users; corpus is the control", choices=USERS)
    dialogues: int = option("dialogues of each kind, at most half of the data; default 300", 300)
    output: Path = option("JSON file to write; the plot lies beside it, as .png")
    report: Path | None = option("Markdown file for the tables and sentences")
    domain: str | None = option("agenda: a domain or its path; default: that of the data, else restaurant")
    user: str = option("agenda: friendly, unfriendly or fixed; default friendly", "friendly")
    model: str | None = option(
        "language_model, agenda_in_model_words: folder or Hub name of a causal LM; none of its code is run"
    )
    partner: str | None = option("language_model: the model that answers the user; default: --model")
    persona: str = option(
        "language_model: who the user is; without it, the model reads the dialogue alone, and begins with real first turns. "
        "agenda_in_model_words: what the model reads before the acts",
        "",
    )
    max_turns: int = option("language_model: replies after which a dialogue is cut; default 10", 10)
    turn_separator: str | None = option(OF_MODELS)
    max_prompt_length: int | None = option(OF_MODELS)
    max_new_tokens: int | None = option(OF_MODELS)
    temperature: float | None = option(OF_MODELS)
    top_p: float | None = option(OF_MODELS)
    seed: int = option("of the halves, the users and the folds; default 0", 0)
    device: str = option("auto, cpu or cuda (default: auto, which is cuda if available)", "auto")


def run(options: CompareUsersOptions) -> None:
    """Compare each kind of user with the real ones."""
    _check(options)
    real, others = _halves(options)
    kinds, result = list(dict.fromkeys(options.users)), {}
    makers = {kind: _maker(kind, options) for kind in kinds}  # wrong arguments end here, before any work
    console = Console()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        for kind in kinds:
            dialogues = bar.add_task(f"{kind}: dialogues", total=len(others))
            talks = makers[kind](others, real, options.seed, partial(bar.advance, dialogues))
            folds = bar.add_task(f"{kind}: classifier", total=2 * FOLDS)
            result[kind] = _compared(kind, talks, options.seed, partial(bar.advance, folds))
    _written(options, result, len(real), console)


def _check(options: CompareUsersOptions) -> None:
    check_scikit_learn()
    check_seed(options.seed)
    check_device(options.device)
    for name, least in (("dialogues", LEAST), ("max_turns", 1)):
        if getattr(options, name) < least:
            raise UserError(f"--{name}: found {getattr(options, name)}, wanted {least} or more")
    if not options.model and (needing := {"language_model", "agenda_in_model_words"} & set(options.users)):
        raise UserError(f"--users {' '.join(sorted(needing))}: needs a language model; name its folder with --model")
    for name in ("output", "report"):
        if path := getattr(options, name):
            check_output(name, path, str(path))


def _halves(options: CompareUsersOptions) -> tuple[list[DialogueRecord], list[DialogueRecord]]:
    """Real dialogues to compare with, and others from which simulated users get what they need."""
    records = [record for split in options.splits for record in load_records(options.data_path, split)]
    records = [record for record in records if len(record.turns) > 1 and not record.is_prompt]
    Random(options.seed).shuffle(records)
    size = min(len(records) // 2, options.dialogues)
    if size < LEAST:
        raise UserError(
            f"--data_path {options.data_path}: {len(records)} dialogues of two turns or more in {', '.join(options.splits)}; at "
            f"least {2 * LEAST} are needed: name more with --splits, or use other data"
        )
    return records[:size], records[size : 2 * size]


def _maker(kind: str, options: CompareUsersOptions) -> Callable[..., Talks]:
    """A function of the other half, the real half, the seed and what to call after each dialogue."""
    if kind == "corpus":
        return user_talks.replay
    sampling = {name: getattr(options, name) for name in SAMPLING if getattr(options, name) is not None}
    load = partial(load_responder, device=options.device, sampling=tuple(sorted(sampling.items())))
    if kind == "language_model":
        responder, partner = (load(name) for name in (options.model, options.partner or options.model))
        return partial(user_talks.language_model, responder, partner, options.persona, options.max_turns)
    domain, speak = _domain(options), None
    if kind == "agenda_in_model_words":
        speak = LMWords(user_words(domain), load(options.model), options.persona)
    return partial(user_talks.agenda, domain, options.user, speak)


def _domain(options: CompareUsersOptions) -> Domain:
    is_camrest = (Path(options.data_path).expanduser() / DATA_BASE).is_file()
    return load_domain(options.domain or (options.data_path if is_camrest else "restaurant"))


def _compared(kind: str, talks: Talks, seed: int, after_fold: Callable[[], None]) -> dict[str, Any]:
    for who, some in (("simulated", talks.simulated), ("real", talks.real)):
        if sum(bool(talk.turns) for talk in some) < LEAST:
            raise UserError(
                f"{kind}: only {sum(bool(t.turns) for t in some)} {who} dialogues have turns to compare; use more data"
            )
    labels = fidelity.labels_of(talks.real, talks.simulated)
    sides = [fidelity.measured(some, labels) for some in (talks.real, talks.simulated)]
    measures = fidelity.compared(sides[0], sides[1], seed)
    classifier = distinguished(talks.real, talks.simulated, seed, after_fold)
    return {
        "sentences": fidelity.sentences(kind, measures, classifier),
        "notes": talks.notes,
        "num_turns": {"real": _count(talks.real), "simulated": _count(talks.simulated)},
        "measures": measures,
        "classifier": classifier,
    }


def _count(talks: list[Any]) -> int:
    return sum(len(talk.turns) for talk in talks)


def _written(options: CompareUsersOptions, result: dict[str, dict[str, Any]], size: int, console: Console) -> None:
    """Show the tables and sentences, and write the files."""
    from experiments.users.fidelity_plot import plot_differences

    settings = {name: value for name, value in vars(options).items() if name not in ("output", "report", "debug")}
    plot = options.output.with_suffix(".png")
    replace_json(options.output, finite({"settings": settings, "dialogues": size, "users": result}))
    plot_differences(result, plot)
    for kind, one in result.items():
        console.print(_table(kind, one, size))
        for line in (*one["sentences"], *one["notes"]):
            console.print(f"- {line}", markup=False, highlight=False, soft_wrap=True)
    if options.report:
        options.report.write_text(_markdown(result, size), encoding="utf-8")
    logger.info("written: %s", ", ".join(str(path) for path in (options.output, plot, options.report) if path))


def _rows(one: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Measure, real users, simulated users, difference in standard deviations."""
    rows = [
        (name, fidelity.shown(name, found["real"]), fidelity.shown(name, found["simulated"]), f"{found['d']:+.2f}")
        for name, found in one["measures"].items()
    ]
    known = [
        (f"recognised {kind}", "", fidelity.percent(one["classifier"][kind]), "") for kind in ("turns", "dialogues")
    ]
    return [*known, *rows]


def _table(kind: str, one: dict[str, Any], size: int) -> Table:
    table = Table(
        title=f"{kind}, {size} dialogues of each kind: mean [95 % interval over dialogues]", title_justify="left"
    )
    table.add_column("measure")
    for name in ("real users", "simulated users", "d"):
        table.add_column(name, justify="right")
    for name, *cells in _rows(one):
        table.add_row(name, *(cell.replace("[", "\\[") for cell in cells))
    return table


def _markdown(result: dict[str, dict[str, Any]], size: int) -> str:
    lines = []
    for kind, one in result.items():
        lines += [
            f"### {kind}",
            "",
            f"| {size} dialogues of each kind | real users | simulated users | d |",
            "|---|---|---|---|",
        ]
        lines += [f"| {' | '.join(row)} |" for row in _rows(one)]
        lines += ["", *(f"- {line}" for line in (*one["sentences"], *one["notes"])), ""]
    return "\n".join(lines)


main = partial(run_command, CompareUsersOptions, run)  # the command line; returns the exit code
