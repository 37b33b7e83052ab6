"""DPO (Rafailov et al. 2023, arXiv 2305.18290) by TRL's trainer on ranked draws:

python -m experiments.dailydialog.dpo PLAN

A killed training goes on from its last checkpoint.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rlhf_dialog.atomic_files import atomic_folder

CHECKPOINTS = 20  # in a training


class Plan(BaseModel):
    """pairs: JSONL of {prompt: turns, chosen, rejected}; output: the folder of the model."""

    model: str
    pairs: str
    output: str
    separator: str
    max_prompt_length: int
    learning_rate: float
    beta: float
    batch_size: int
    seed: int


def texts_of(pair: dict[str, Any], separator: str, fits: Any) -> dict[str, str] | None:
    """A pair as text, as the SFT model has learned prompts and replies, without its oldest turns where it is too long.

    fits: whether a prompt is short enough. None where not even the newest turn is.
    """
    from rlhf_dialog.data.dialogue import render_prompt, render_reply

    turns = pair["prompt"]
    while turns and not fits(render_prompt(turns, separator)):
        turns = turns[1:]
    if not turns:
        return None
    replies = {name: f"{render_reply(pair[name])} {separator}" for name in ("chosen", "rejected")}
    return {"prompt": render_prompt(turns, separator), **replies}


def train(plan: Plan) -> None:
    """Train, and write model and tokenizer."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.trainer_utils import get_last_checkpoint
    from transformers.utils.logging import disable_progress_bar
    from trl import DPOConfig, DPOTrainer

    disable_progress_bar()  # its 100 % of a checkpoint would pass for that of the training
    tokenizer, whole = (AutoTokenizer.from_pretrained(plan.model) for _ in range(2))
    tokenizer.eos_token = plan.separator  # which ends a reply here; TRL would add another end token

    def fits(text: str) -> bool:
        return len(tokenizer(text)["input_ids"]) <= plan.max_prompt_length

    lines = Path(plan.pairs).read_text(encoding="utf-8").splitlines()
    texts = [text for line in lines if (text := texts_of(json.loads(line), plan.separator, fits))]
    scratch = Path(plan.output).parent / "checkpoints"
    steps = max(len(texts) // plan.batch_size, 1)
    model: Any = AutoModelForCausalLM.from_pretrained(plan.model)
    trainer = DPOTrainer(
        model=model,
        args=DPOConfig(
            output_dir=str(scratch),
            max_steps=steps,
            per_device_train_batch_size=plan.batch_size,
            learning_rate=plan.learning_rate,
            beta=plan.beta,
            seed=plan.seed,
            save_steps=max(steps // CHECKPOINTS, 1),
            save_total_limit=1,
            logging_steps=max(steps // CHECKPOINTS, 1),
            max_length=None,
            report_to="none",
            disable_tqdm=True,
            gradient_checkpointing=False,
            bf16=False,
        ),
        train_dataset=Dataset.from_list(texts),
        processing_class=tokenizer,
        callbacks=[_lines()],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(scratch)) if scratch.is_dir() else None)
    with atomic_folder(Path(plan.output)) as folder:
        model.save_pretrained(folder)
        whole.save_pretrained(folder)


def _lines() -> Any:
    """A callback that prints `step 3 of 12` with the loss."""
    from transformers import TrainerCallback

    class Lines(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:
                print(f"step {state.global_step} of {state.max_steps}: loss {float(logs['loss']):.3f}", flush=True)

    return Lines()


if __name__ == "__main__":
    train(Plan(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
