"""What a pretrained size needs, refused in one sentence before anything is computed."""

from pathlib import Path

from experiments.dailydialog.sizes import CHITCHAT, MINILM, SMOLLM2
from experiments.users.two_sample import check_scikit_learn
from rlhf_dialog.data.chat_models import chat_settings
from rlhf_dialog.data.sources import SPLITS
from rlhf_dialog.errors import UserError


def check(data: Path, fetched: Path, model: Path | None) -> None:
    """Raises UserError for data without acts, a model without a chat template, and what was not fetched or installed."""
    check_scikit_learn()
    for split in SPLITS:
        if not (data / split / f"dialogues_act_{split}.txt").is_file():
            raise UserError(
                f"--data_path: '{data}' has no {split}/dialogues_act_{split}.txt, which the reward learns; name DailyDialog's "
                "original folder"
            )
    wanted = [MINILM, CHITCHAT] if model else [SMOLLM2, MINILM, CHITCHAT]
    if missing := [name for name in wanted if not (fetched / name).is_dir()]:
        raise UserError(
            f"--fetched: '{fetched}' has no {' and no '.join(missing)}; fetch what is missing: "
            f"python -m experiments.smollm2 fetch {' '.join(missing)} --output {fetched}"
        )
    start, flag = (model, "--model") if model else (fetched / SMOLLM2, "--fetched")
    if not (start / "config.json").is_file():
        raise UserError(
            f"{flag}: '{start}' is no model: it has no config.json; name the folder of a causal language model"
        )
    if not chat_settings(start):
        raise UserError(
            f"{flag}: the tokenizer in '{start}' has no chat template, in which the dialogues are written; name a chat model"
        )
