"""Write docs/CONFIG.md from the configuration classes:  python scripts/write_config_docs.py [--check]"""

import argparse
import sys
from pathlib import Path

import rlhf_dialog.metrics
import rlhf_dialog.rewards  # noqa: F401  registers its classes
from rlhf_dialog.commands.command_line import key_rows
from rlhf_dialog.config.registry import RewardFactory, VecInfoFactory
from rlhf_dialog.config.schema import NO_EFFECT, Config

REWARDS, VEC_INFOS = (
    sorted(name for name, cls in registry.classes.items() if cls.__module__.startswith("rlhf_dialog."))
    for registry in (RewardFactory, VecInfoFactory)
)
PAGE = Path(__file__).resolve().parent.parent / "docs" / "CONFIG.md"
HEAD = f"""# Configuration of train_ppo.py

Written by `python scripts/write_config_docs.py` from `rlhf_dialog/config/schema.py`; a test keeps it true. The same table,
shorter: `python train_ppo.py --help`. Every key can stand in the YAML or on the command line (`--key value`, `--a.b value`, also
`--reward_class.args.parts.0.weight 0.3`); order: defaults < file < command line. Unknown keys, wrong types and values out of
range are reported all at once, with the nearest known name, before anything is loaded.

Classes are named by their registered id and get `args` as arguments of their constructor:
`reward_class` ({", ".join(REWARDS)}, or your own) and
`vec_info_class` ({", ".join(VEC_INFOS)}, or your own).
NLPReward's arguments `ref_model`, `kl_coef`, `kl_target`, `kl_rate` and `kl_clip` are the top-level keys of these names.
"""


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    rows = list(key_rows(Config))
    for group in dict.fromkeys(row.group for row in rows):
        lines += [f"## {group}", "", "| key | type | default | meaning |", "|---|---|---|---|"]
        members = [row for row in rows if row.group == group]
        lines += [f"| `{r.key}` | {cell(r.kind)} | {cell(r.default)} | {cell(r.meaning)} |" for r in members]
        lines.append("")
    lines += ["## Accepted without effect", "", "Keys of OpenRL's YAML that load, and are named once in the log.", ""]
    lines += ["| key | no effect, because |", "|---|---|"]
    lines += [f"| `{key}` | {cell(reason)} |" for key, reason in NO_EFFECT.items()]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    return text.replace("|", r"\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether docs/CONFIG.md is up to date")
    options = parser.parse_args()
    if options.check:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page()
        print("up to date" if current else f"{PAGE.name} is old; run python scripts/write_config_docs.py")
        return 0 if current else 1
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
