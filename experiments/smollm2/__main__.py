"""`python -m experiments.smollm2 fetch PART ...`, `table ...` and `best_of ...`."""

import sys

from experiments.smollm2 import best_of, fetch, table

COMMANDS = {"fetch": fetch.main, "table": table.main, "best_of": best_of.main}


def main(words: list[str]) -> int:
    """Run the command that the first word names; returns its exit code, or 2 where there is no such command."""
    if not words or words[0] not in COMMANDS:
        sys.stderr.write(f"usage: python -m experiments.smollm2 {{{','.join(COMMANDS)}}} ...\n")
        return 0 if words[:1] in (["--help"], ["-h"]) else 2
    sys.argv[0] = f"python -m experiments.smollm2 {words[0]}"
    return COMMANDS[words[0]](words[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
