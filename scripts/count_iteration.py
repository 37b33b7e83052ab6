"""The files and lines that one iteration of PPO enters: what a reader of `PPOTrainer.step` down to the loss may have to open.

    python scripts/count_iteration.py [--files]

The settings are those of configs/quickstart.yaml with a critic (`--advantage_estimator gae`), the models tiny and random.
A file counts, with all its lines, when one of its functions is called during the first iteration, in any thread. The stack is
that of `train_ppo.py`, from its main program to the `backward` of a loss; frames of libraries do not count.
"""

import argparse
import os
import runpy
import sys
import tempfile
import threading
import traceback
from collections import defaultdict
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import yaml  # noqa: E402

import rlhf_dialog  # noqa: E402
from tests.parts.classifiers import save_classifier  # noqa: E402
from tests.parts.scalars import save_scalar  # noqa: E402
from tests.parts.tiny import byte_tokenizer, gpt2, write_data  # noqa: E402

PACKAGE = Path(rlhf_dialog.__file__).parent
SMALL = {
    "max_new_tokens": 6,
    "rollout_batch_size": 16,
    "device": "cpu",
    "pytorch_threads": 1,
    "advantage_estimator": "gae",
    "max_iterations": 1,
}


def entered_files(config: Path) -> dict[str, int]:
    """The files of the package that one iteration enters, each with the number of its lines."""
    trainer = rlhf_dialog.PPOAgent.from_config(config).build()
    files: set[str] = set()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        trainer.step()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    ours = sorted(path for name in files if (path := Path(name)).is_relative_to(PACKAGE))
    return {str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in ours}


def stack_at_backward(config: Path) -> list[str]:
    """Our functions on the stack of `train_ppo.py` at `backward`, the main program first."""
    backward = torch.Tensor.backward
    stack: list[str] = []

    def watched(loss: torch.Tensor) -> None:
        codes = [frame.f_code for frame, _ in traceback.walk_stack(sys._getframe(1))][::-1]
        ours = [code for code in codes if Path(code.co_filename).is_relative_to(PACKAGE)]
        stack[:] = ["train_ppo.py", *(f"{Path(code.co_filename).relative_to(PACKAGE)}:{code.co_name}" for code in ours)]
        backward(loss)

    command = ["train_ppo.py", "--config", str(config)]
    with ExitStack() as contexts:
        nowhere = contexts.enter_context(Path(os.devnull).open("w"))
        for context in (redirect_stdout(nowhere), redirect_stderr(nowhere), suppress(SystemExit)):
            contexts.enter_context(context)
        contexts.enter_context(patch("torch.Tensor.backward", watched))
        contexts.enter_context(patch("sys.argv", command))
        runpy.run_path(str(ROOT / command[0]), run_name="__main__")
    return stack


def _write_config(folder: Path) -> Path:
    """The quickstart's configuration with the tiny models of this machine, which go into `folder`; returns the file."""
    config = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text(encoding="utf-8"))
    gpt2().save_pretrained(folder / "model")
    byte_tokenizer().save_pretrained(folder / "model")
    save_classifier(folder / "intent", byte_tokenizer(), vocab_size=300, max_position_embeddings=128)
    save_scalar(folder / "preference", tokenizer=byte_tokenizer())
    models = {
        "Intent": {"intent_model": str(folder / "intent")},
        "RewardModel": {"model": str(folder / "preference"), "clip": 3.0},
    }
    for part in config["reward_class"]["args"]["parts"]:
        part["args"] = models.get(part["id"], {})
    config |= SMALL | {"model_path": str(folder / "model"), "run_dir": str(folder / "runs")}
    config["env"]["args"]["data_path"] = str(write_data(folder / "data"))
    path = folder / "ppo.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def sizes_by_folder(files: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Folder -> files and lines."""
    lines = defaultdict(list)
    for path, count in files.items():
        lines[path.partition("/")[0]].append(count)
    return {folder: (len(counts), sum(counts)) for folder, counts in lines.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", action="store_true", help="list every file, and the stack")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = _write_config(Path(folder))
        files = entered_files(config)
        stack = stack_at_backward(config)
    if options.files:
        print(*stack, sep="\n")
        for path, count in files.items():
            print(f"{count:6} {path}")
    for name, (count, lines) in sorted(sizes_by_folder(files).items()):
        print(f"{name:16} {count:3} files {lines:6} lines")
    print(f"{len(stack)} of our frames are on the stack at backward")
    core = [lines for path, lines in files.items() if path.startswith(("training/", "models/"))]
    print(
        f"training + models: {len(core)} files, {sum(core)} lines; in all {len(files)} files, {sum(files.values())} lines"
    )


if __name__ == "__main__":
    main()
