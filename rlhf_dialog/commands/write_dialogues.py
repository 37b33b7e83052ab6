"""Write the made-up dialogues of the offline quickstart."""

import argparse
import sys
from pathlib import Path

from rlhf_dialog.data.made_up.dialogues import write_dialogues
from rlhf_dialog.errors import UserError


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Write everyday two-person dialogues in the layout of the original DailyDialog files: "
        "OUTPUT/{train,validation,test}/dialogues_SPLIT.txt and dialogues_act_SPLIT.txt (80, 10 and 10 percent). "
        "They come from a grammar of this project, need no network, and are the same for the same seed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", default=argparse.SUPPRESS, help="a new or empty folder"
    )
    parser.add_argument("--num_dialogues", type=int, default=3000, metavar="N", help="how many, over all splits")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, other dialogues")
    parser.add_argument("--scenes", nargs="+", default=[], metavar="NAME", help="only these scenes; default: all")
    args = parser.parse_args(argv)
    try:
        counts = write_dialogues(args.output, args.num_dialogues, args.seed, args.scenes)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{args.output}: " + ", ".join(f"{num} {name}" for name, num in counts.items()))
    return 0
