"""The wheel and the source distribution hold what they should, and the wheel works where the checkout is not seen."""

import configparser
import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import rlhf_dialog
from tests.parts.processes import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder with both, built offline from a copy of the checkout."""
    spec = importlib.util.spec_from_file_location("check_wheel", ROOT / "scripts" / "check_wheel.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.build(tmp_path_factory.mktemp("wheel")).parent


@pytest.fixture(scope="module")
def wheel(dist):
    (path,) = dist.glob("*.whl")
    return path


def files(*patterns: str) -> set[str]:
    """What the checkout holds, relative to its root."""
    found = {path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    return {path.as_posix() for path in found if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_package_and_the_configurations_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    patterns = ("configs/*.yaml", "configs/*.json", "configs/schemas/*.json", "ds_configs/*.json")
    shipped = {f"rlhf_dialog/{name}" for name in files(*patterns)}
    named = ("configs/quickstart.yaml", "configs/schemas/ppo.json", "ds_configs/zero3.json")
    assert {f"rlhf_dialog/{name}" for name in named} < shipped
    assert names == shipped | files("rlhf_dialog/**/*")


def test_what_the_wheel_says_of_itself(wheel):
    archive = zipfile.ZipFile(wheel)
    about = f"rlhf_dialog-{rlhf_dialog.__version__}.dist-info"
    scripts = configparser.ConfigParser()
    scripts.read_string(archive.read(f"{about}/entry_points.txt").decode())
    assert dict(scripts["console_scripts"]) == {"rlhf-dialog": "rlhf_dialog.commands.dispatcher:main"}
    assert archive.read(f"{about}/top_level.txt").decode().split() == ["rlhf_dialog"]


def test_the_source_distribution_holds_all_that_it_is_built_and_tested_with(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    folders = ("benchmarks", "configs", "docs", "ds_configs", "reward_models", "rlhf_dialog", "scripts", "tests")
    wanted = files(*(f"{folder}/**/*" for folder in folders), "*.py", "*.md", "*.toml", "*.txt", "Makefile", "LICENSE")
    assert wanted - names == set()


def test_it_works_from_an_empty_folder_without_the_checkout(wheel, tmp_path):
    target, empty = tmp_path / "target", tmp_path / "empty"
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], check=True)
    settings = {**os.environ, "PYTHONPATH": str(target)}

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run([sys.executable, *words], cwd=empty, env=settings, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return ran

    assert Path(python("-c", "import rlhf_dialog; print(rlhf_dialog.__file__)").stdout).is_relative_to(target)
    assert "write-dialogues" in python("-m", "rlhf_dialog", "--help").stdout
    shown = python("-m", "rlhf_dialog", "train", "--config", "quickstart.yaml", "--print_config")
    assert shown.stderr == f"config: {target}/rlhf_dialog/configs/quickstart.yaml\n"
    assert yaml.safe_load(shown.stdout)["experiment_name"] == "quickstart"
    where = "from rlhf_dialog.distributed.deepspeed_config import read_engine_file as f; print(f('zero3.json', None, 'k')[0])"
    assert python("-c", where).stdout == f"{target}/rlhf_dialog/ds_configs/zero3.json\n"
    assert list(empty.iterdir()) == []
