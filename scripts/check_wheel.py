"""Check that the wheel works without this checkout: build it, install it into an empty environment, and do a run there.

The environment uses the libraries of the Python that runs this script; the package itself must come from the wheel.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = {"build", "data", "dist", "ppo_agent", "run_results", "runs", "wandb"}
TINY = "--n_layer 1 --n_embd 32 --n_head 2 --vocab_size 400 --evals 1 --max_steps 4 --batch_size 8 --device cpu"
TRAIN = (
    "train --config quickstart.yaml --experiment_name first --env.args.data_path data --model_path sft --device cpu "
    "--reward_class.id LengthMatch --reward_class.args {} --rollout_batch_size 8 --num_mini_batch 2 --max_new_tokens 8 "
    "--max_iterations 1"
)
STEPS = (
    "write-dialogues --output data --num_dialogues 60",
    f"train-sft --config sft_quickstart.yaml --data_path data --output sft {TINY}",
    f"{TRAIN} --smoke",
    TRAIN,
    "export --run runs/first --output agent",
    "chat --agent agent",
)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        programs = install(build(folder), folder / "environment")
        (folder / "empty").mkdir()
        return smoke(programs, folder / "empty")


def build(folder: Path) -> Path:
    """Build the wheel in `folder`/dist from a source distribution of a copy of this checkout."""
    dist = folder / "dist"
    shutil.copytree(ROOT, folder / "copy", ignore=_not_copied)
    sdist = _built("build_sdist", folder / "copy", dist)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return _built("build_wheel", folder / sdist.name.removesuffix(".tar.gz"), dist)


def _not_copied(folder: str, names: list[str]) -> set[str]:
    made = {name for name in names if name == "__pycache__" or name.endswith(".egg-info")}
    return made | ({name for name in names if name.startswith(".")} | NOT_COPIED if Path(folder) == ROOT else set())


def _built(hook: str, source: Path, dist: Path) -> Path:
    """The file that setuptools builds from the folder `source`."""
    program = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
    dist.mkdir(exist_ok=True)
    before = set(dist.iterdir())
    subprocess.run([sys.executable, "-c", program, str(dist)], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (made,) = set(dist.iterdir()) - before
    return made


def install(wheel: Path, environment: Path) -> Path:
    """Create an environment with the wheel and the libraries of this one; returns the folder of its programs."""
    venv.create(environment)
    programs = environment / "bin"
    (packages,) = environment.glob("lib/python*/site-packages")
    pip = [sys.executable, "-P", "-m", "pip", "--python", str(programs / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    (packages / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return programs


def smoke(programs: Path, folder: Path) -> int:
    """Run the commands one after the other in an empty folder; returns the first exit code other than 0."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    where = [str(programs / "python"), "-c", "import rlhf_dialog; print(rlhf_dialog.__file__)"]
    found = subprocess.run(where, cwd=folder, env=settings, check=True, capture_output=True, text=True).stdout.strip()
    if not Path(found).is_relative_to(programs.parent):
        print(f"the package was not imported from the wheel, but from {found}")
        return 1
    for step in STEPS:
        print(f"$ rlhf-dialog {step}", flush=True)
        command = [str(programs / "rlhf-dialog"), *step.split()]
        code = subprocess.run(command, cwd=folder, env=settings, input="Hello .\n", text=True).returncode
        if code:
            print(f"ended with exit code {code}")
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
