"""The wheel and the source distribution hold what they should, and the wheel works where the checkout is not seen."""

import configparser
import tarfile
import zipfile

import pytest

import rlhf_dialog
from tests.parts.processes import ROOT, load_script

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder with both, built offline from a copy of the checkout."""
    return load_script("scripts/check_wheel.py").build(tmp_path_factory.mktemp("wheel")).parent


def files(*patterns: str) -> set[str]:
    """What the checkout holds, relative to its root."""
    found = {path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    return {path.as_posix() for path in found if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_package_and_the_configurations_and_nothing_else(dist):
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    patterns = ("configs/*.yaml", "configs/*.json", "configs/schemas/*.json", "ds_configs/*.json")
    shipped = {f"rlhf_dialog/{name}" for name in files(*patterns)}
    named = ("configs/quickstart.yaml", "configs/schemas/ppo.json", "ds_configs/zero3.json")
    assert {f"rlhf_dialog/{name}" for name in named} < shipped
    assert names == shipped | files("rlhf_dialog/**/*")
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
