"""Write KEYS.md and schema.json of this folder, from the class of the month's keys:  python -m experiments.month.keys"""

from pathlib import Path

from experiments.month.simulation import MonthKeys
from rlhf_dialog.commands.command_line import key_rows
from rlhf_dialog.config.settings import schema_text

FOLDER = Path(__file__).parent
HEAD = """# Keys of a simulated month

Written by `python -m experiments.month.keys`. `configs/month.yaml` sets them.

| key | type | default | meaning |
|---|---|---|---|
"""


def written() -> dict[Path, str]:
    """Each file that is written here, with its text."""
    rows = [[f"`{row.key}`", row.kind, row.default, row.meaning] for row in key_rows(MonthKeys)]
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |" for cells in rows]
    return {
        FOLDER / "KEYS.md": HEAD + "\n".join(lines) + "\n",
        FOLDER / "schema.json": schema_text(MonthKeys),
    }


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
