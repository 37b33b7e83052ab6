"""The floor of the likelihood price under an SFT model:  python -m experiments.dailydialog.pretrained.floor PLAN"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlhf_dialog.atomic_files import replace_json

BELOW = 0.1  # share of the true replies


def main(path: Path) -> None:
    """Write `floor`: what a tenth of the true replies to validation prompts have less than, in nats a token."""
    from rlhf_dialog.data.prompts import load_prompts
    from rlhf_dialog.evaluation.replies import pick_prompts
    from rlhf_dialog.rewards import LikelihoodPrice

    plan = json.loads(path.read_text(encoding="utf-8"))
    prompts = load_prompts(plan["data"], "validation", plan["context_size"], turn_separator=None)
    true = [replace(one, response=one.reference or "") for one in pick_prompts(prompts, plan["prompts"], 0)]
    means = LikelihoodPrice(plan["model"], None, plan["tokens"]).means(true)
    floor = round(float(np.quantile(means, BELOW)), 3)
    replace_json(Path(plan["output"]), {"floor": floor, "mean": float(np.mean(means)), "prompts": len(true)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
