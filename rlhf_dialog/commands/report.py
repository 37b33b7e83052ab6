"""Write the HTML report of a run: what its metrics mean and what to do, its curves, and replies side by side.

rlhf-dialog report runs/quickstart [runs/another ...] [--output FILE]

The report is one HTML file that loads nothing else. Several runs share the plots, and the settings in which they differ are
shown. docs/READING_A_RUN.md has the rules.
"""

from functools import partial
from pathlib import Path

from rlhf_dialog.commands.command_line import check_output
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.errors import UserError


class ReportOptions(Options):
    description = __doc__
    runs: tuple[Path, ...] = option("folder of a run, which contains metrics.jsonl", metavar="RUN", form="positional")
    output: Path | None = option("HTML file to write; default: report.html in the first run folder")


def report(options: ReportOptions) -> None:
    """Write the page. Raises UserError for a folder that holds no run, for damaged files, and where it cannot be written."""
    for run in options.runs:
        if not (run / "metrics.jsonl").is_file():
            missing = "there is no metrics.jsonl in it" if run.is_dir() else "there is no such folder"
            raise UserError(f"{run}: {missing}; name the folder of a run, which holds metrics.jsonl")
    if len({run.resolve() for run in options.runs}) < len(options.runs):
        raise UserError("report: the same run is named twice; name each once")
    output = options.output or options.runs[0] / "report.html"
    check_output("output", output, str(output))
    from rlhf_dialog.atomic_files import replace_file
    from rlhf_dialog.evaluation.run_page.page import build_page
    from rlhf_dialog.evaluation.run_page.verdict import verdict
    from rlhf_dialog.runs.run_reader import read_run

    records = [read_run(run) for run in options.runs]
    replace_file(output, build_page(records))
    for record in records:
        print(f"{record.name}: {verdict(record.rows, record.config)[0]}")
    print(f"report: {output}")


main = partial(run_command, ReportOptions, report)  # the command line; returns the exit code
