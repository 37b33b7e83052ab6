"""The command rlhf-dialog: what it lists, how it starts a command, and how launchers start it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_dialog import __version__
from rlhf_dialog.commands import dispatcher
from tests.parts.processes import ROOT
from tests.parts.ranks import free_port

GROUPS = {
    "start here": ["doctor", "train", "chat"],
    "measure": ["evaluate", "plot-run", "report", "audit"],
    "teach": [*("train-sft", "train-intent-classifier", "train-preference-model", "train-relevance-model"), "feedback"],
    "policies that choose dialogue acts": ["train-policy", "evaluate-policy"],
    "publish": ["export", "push-to-hub"],
    "develop": ["benchmark", "schema", "write-dialogues"],
}
NAMES = tuple(name for names in GROUPS.values() for name in names)


@pytest.fixture(autouse=True)
def _own_program_name(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/opt/venv/bin/rlhf-dialog"])


def python(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`python *words` in another folder than the checkout, with its package."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=settings, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["--local_rank=1"]])
def test_it_lists_every_command_on_a_line_of_its_own(words, capsys):
    assert dispatcher.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "usage: rlhf-dialog COMMAND ..." in lines
    groups: dict[str, list[str]] = {}
    for line in lines:
        if title := re.fullmatch(r"(\S.*):", line):
            groups[title[1]] = names = []
        elif row := re.fullmatch(r"  (\S+) {2,}\S.*", line):
            names.append(row[1])
    assert groups == GROUPS
    assert list(groups) == list(GROUPS)
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("word", "advice"), [("trian", "did you mean 'train'?\n"), ("--config", "choose one of doctor, train, chat, ")]
)
def test_an_unknown_command_is_the_users_error(word, advice, capsys):
    assert dispatcher.main([word, "--help"]) == 2
    assert capsys.readouterr().err.startswith(f"error: there is no command '{word}'; {advice}")


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_shows_its_name(name, capsys):
    try:
        code = dispatcher.main([name, "--help"])
    except SystemExit as end:  # argparse's
        code = end.code
    assert code == 0
    assert f"usage: rlhf-dialog {name} " in capsys.readouterr().out


def test_the_command_gets_the_other_words_and_its_exit_code_is_returned(monkeypatch, capsys):
    assert dispatcher.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rlhf-dialog {__version__}\n"
    seen = []
    monkeypatch.setattr("rlhf_dialog.commands.chat.main", lambda words: seen.append(words) or 3)
    assert dispatcher.main(["--local_rank=1", "chat", "--agent", "train"]) == 3
    assert seen == [["--local_rank=1", "--agent", "train"]]


def test_the_list_of_commands_loads_no_heavy_library(tmp_path):
    program = (
        "import sys\n"
        "from rlhf_dialog.commands.dispatcher import main\n"
        "main([]), main(['trian'])\n"
        "print(sorted({'torch', 'transformers', 'pydantic', 'yaml', 'rich', 'numpy'} & set(sys.modules)))\n"
    )
    ran = python("-c", program, cwd=tmp_path)
    assert ran.stdout.endswith("\n[]\n"), ran.stderr


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "launcher",
    [
        ["torch.distributed.run", "--nproc_per_node", "2", "--master_port", "{port}"],
        ["accelerate.commands.launch", "--cpu", "--num_processes", "2", "--main_process_port", "{port}"],
        ["deepspeed.launcher.launch", "--world_info=eyJsb2NhbGhvc3QiOiBbMCwgMV19", "--master_port={port}"],
    ],
    ids=["torchrun", "accelerate", "deepspeed"],
)
def test_launchers_start_the_module_and_one_rank_speaks(launcher, tmp_path):
    words = [word.format(port=free_port()) for word in launcher]
    module = "--module" if "deepspeed" in words[0] else "-m"
    ran = python("-m", *words, module, "rlhf_dialog", "train", "--config", "nowhere.yaml", cwd=tmp_path)
    assert ran.returncode != 0
    assert ran.stderr.count("error: config file 'nowhere.yaml' not found") == 1, ran.stderr
