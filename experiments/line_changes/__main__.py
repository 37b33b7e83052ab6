"""Draws changes of one line in the package, and says which of them the tests notice.

    draw --seed 0 --number 100 --output FILE    writes the changes: file, function, line before and after
    run --file FILE [--again] [--jobs 1] ...    makes each in a copy of the tree and runs the tests beside it
    report --file FILE [--again]                counts, survivors, and what was noticed at first and is not again

`run` writes after each change, leaves out those that have a result, and finds a function that was moved by its name.
Run it from the root of the checkout: `python -m experiments.line_changes report --file FILE`.
"""

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from experiments.line_changes.changed_tree import ChangedTree, Request, copy_of
from experiments.line_changes.forked_pytest import load_heavy_libraries
from experiments.line_changes.line_operators import changes
from experiments.line_changes.places import OUTSIDE, functions_of_lines, same_lines

ROOT = Path(__file__).resolve().parents[2]
FIRST, AGAIN = "first", "again"
NOTICED, SURVIVED = "noticed", "survived"


def draw(options: argparse.Namespace) -> None:
    """Draws lines, each with the same chance, and of each line one of its changes."""
    chooser = random.Random(options.seed)
    by_line: dict[tuple[str, int], list] = {}
    for path in sorted((ROOT / "rlhf_dialog").rglob("*.py")):
        for change in changes(path.read_text(encoding="utf-8")):
            by_line.setdefault((path.relative_to(ROOT).as_posix(), change.line), []).append(change)
    lines = sorted(chooser.sample(sorted(by_line), options.number))
    drawn = [_written_down(file, chooser.choice(by_line[file, line])) for file, line in lines]
    head = {"seed": options.seed, "lines_with_a_change": len(by_line), "commit": _commit()}
    _write(options.output, {**head, "changes": drawn, "seconds_of_files": {}, "failing_unchanged": []})


def _written_down(file: str, change) -> dict:
    source = (ROOT / file).read_text(encoding="utf-8")
    function = functions_of_lines(source).get(change.line, OUTSIDE)
    nth = same_lines(source, function, change.old).index(change.line)
    place = {"file": file, "function": function, "line": change.line, "nth": nth}
    return {**place, "operator": change.operator, "old": change.old, "new": change.new, "results": {}}


def run(options: argparse.Namespace) -> None:
    """Each change without a result in turn, in as many processes as jobs, each with a copy of the tree of its own."""
    record = json.loads(options.file.read_text(encoding="utf-8"))
    name = AGAIN if options.again else FIRST
    waiting = [number for number, change in enumerate(record["changes"]) if _is_waiting(change, name, options)]
    commit = _commit()  # of what is copied: the checkout may go on during the run
    load_heavy_libraries()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="line_changes_") as folder:
        workers = []
        for job in range(options.jobs):
            tree = copy_of(ROOT, Path(folder) / f"copy{job}")
            work = (tree, waiting[job :: options.jobs], record, options, answers)
            workers.append(context.Process(target=_work, args=work))
            workers[-1].start()
        for count in range(len(waiting)):
            number, result, *learned = answers.get()
            if not result["outcome"].startswith("error"):
                record["changes"][number]["results"][name] = {**result, "commit": commit}
            _learn(record, *learned)
            outcome = f"{result['outcome']} {result.get('noticed_by', '')}"
            print(
                f"{count + 1} of {len(waiting)}: {_one_line(number, record['changes'][number])}: {outcome}", flush=True
            )
            _write(options.file, record)
        for worker in workers:
            worker.join()


def _is_waiting(change: dict, name: str, options: argparse.Namespace) -> bool:
    result = change["results"].get(name)
    return result is None or options.afresh or (options.unnoticed and result["outcome"] != NOTICED)


def _work(tree: Path, numbers: list[int], record: dict, options: argparse.Namespace, answers) -> None:
    request = Request(options.mark, options.seconds, record["seconds_of_files"], record["failing_unchanged"])
    changed_tree = ChangedTree(tree, request)
    for number in numbers:
        try:
            result = changed_tree.result_of(record["changes"][number])
        except Exception as error:  # the others go on, and the next run tries this one again
            result = {"outcome": f"error: {error!r}"}
        answers.put((number, result, request.seconds_of_files, request.failing_unchanged))


def _learn(record: dict, seconds: dict[str, float], failing: list[str]) -> None:
    record["seconds_of_files"].update(seconds)
    record["failing_unchanged"] = sorted({*record["failing_unchanged"], *failing})


def report(options: argparse.Namespace) -> None:
    """Counts, one line for each that was not noticed, and those noticed at first that are not noticed again."""
    record = json.loads(options.file.read_text(encoding="utf-8"))
    name = AGAIN if options.again else FIRST
    outcomes = [change["results"].get(name, {}).get("outcome", "not run") for change in record["changes"]]
    print(", ".join(f"{outcome}: {count}" for outcome, count in sorted(Counter(outcomes).items())))
    for number, (change, outcome) in enumerate(zip(record["changes"], outcomes, strict=True)):
        at_first = change["results"].get(FIRST, {})
        lost = f" (at first by {at_first['noticed_by']})" if options.again and at_first.get("noticed_by") else ""
        if outcome not in (NOTICED, "not run"):
            print(f"{outcome}: {_one_line(number, change)}{lost}")


def _one_line(number: int, change: dict) -> str:
    lines = f"{change['old'].strip()}  ->  {change['new'].strip()}"
    return f"{number} {change['file']}:{change['line']} {change['function']}: {lines}"


def _commit() -> str:
    return subprocess.check_output(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, text=True).strip()


def _write(path: Path, record: dict) -> None:
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(beside, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, default=0)
    drawing.add_argument("--number", type=int, default=100)
    drawing.add_argument("--output", type=Path, required=True)
    drawing.set_defaults(function=draw)
    running, reporting = commands.add_parser("run"), commands.add_parser("report")
    for one in (running, reporting):
        one.add_argument("--file", type=Path, required=True)
        one.add_argument("--again", action="store_true", help="a second round, kept beside the first")
    running.add_argument("--jobs", type=int, default=1)
    running.add_argument("--seconds", type=float, default=240, help="the time limit of one change")
    running.add_argument("--mark", help="pytest's -m instead of the default one")
    running.add_argument("--afresh", action="store_true", help="also those that have a result in this round")
    running.add_argument("--unnoticed", action="store_true", help="also those that this round has not noticed")
    running.set_defaults(function=run)
    reporting.set_defaults(function=report)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
