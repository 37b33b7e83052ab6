"""Blind reading: which of two systems' replies do readers prefer who do not know whose they are?

python -m experiments.blind --replies replies.jsonl --pairs 60 --output reading     (evaluate --replies writes the file)
python -m experiments.blind --key reading/key.json --verdicts ann.json --verdicts bob.json

The first writes reading/page.html, which is opened from disk and read by keyboard, and reading/key.json, which readers do not
see. The second counts the verdicts that readers have saved on the page. Language models do not replace people as readers: say
who they were.
"""

from functools import partial
from pathlib import Path

from experiments.blind import reading as blind
from rlhf_dialog.atomic_files import replace_file
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs.run_reader import read_replies

KINDS = "--replies FILE with --output DIR writes a page, --key FILE with --verdicts FILE counts"


class BlindOptions(Options):
    description = __doc__
    replies: Path | None = option("JSONL file of `evaluate --replies`")
    pairs: int = option("number of pairs (default: 60)", 60)
    systems: tuple[str, ...] = option(
        "names of the two systems in the file (default: after and before)", ("after", "before")
    )
    seed: int = option("draws the prompts, their order and the sides (default: 0)", 0)
    output: Path | None = option("folder for page.html and key.json")
    key: Path | None = option("key.json of the page")
    verdicts: tuple[Path, ...] = option(
        "verdicts that a reader has saved. May be given several times", (), form="repeated"
    )


def run(options: BlindOptions) -> None:
    """Write a page with its key, or count verdicts. Raises UserError for options that do not fit together."""
    if options.replies and options.output and not options.key and not options.verdicts:
        write(options, options.replies, options.output)
    elif options.key and options.verdicts and not options.replies and not options.output:
        count(options.key, options.verdicts)
    else:
        raise UserError(f"blind: {KINDS}")


def write(options: BlindOptions, replies: Path, output: Path) -> None:
    if options.pairs < 1:
        raise UserError(f"--pairs: found {options.pairs}, wanted at least 1")
    if len(set(options.systems)) != 2:
        raise UserError(f"--systems: found {' '.join(options.systems)}, wanted two names")
    found = blind.reading(read_replies(replies), options.systems, options.pairs, options.seed)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output: {output} cannot be made: {error}") from error
    for name, text in (("page.html", found.page), ("key.json", found.key)):
        replace_file(output / name, text)
    print(f"open {output / 'page.html'} in a browser; readers must not see {output / 'key.json'}")


def count(path: Path, verdicts: tuple[Path, ...]) -> None:
    key = blind.read_key(path)
    judged = [blind.outcome_of(key, one) for one in verdicts]
    first, second = key["systems"]
    for outcome, _ in judged:
        low, high = outcome.interval
        decided = outcome.wins + outcome.losses
        share = (
            f"{outcome.wins / decided:.0%} of {decided} decided [{low:.0%}, {high:.0%}]" if decided else "none decided"
        )
        print(
            f"{outcome.reader}: {first} {outcome.wins}, {second} {outcome.losses}, ties {outcome.ties}; {first}: {share}"
        )
    for i, (one, ours) in enumerate(judged):
        for other, theirs in judged[i + 1 :]:
            same, kappa = blind.agreement(ours, theirs)
            print(f"{one.reader} and {other.reader} agree on {same:.0%} of the pairs (kappa {kappa:.2f})")


main = partial(run_command, BlindOptions, run)  # the command line; returns the exit code
