import errno
import logging
import os
import signal
import subprocess
from pathlib import Path
from typing import Literal

import pytest
import torch
from pydantic import Field

from rlhf_dialog.commands import command_line
from rlhf_dialog.commands.options import Options, YamlOptions, run_command
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.settings import DataKeys
from rlhf_dialog.errors import RunStopped, UserError
from tests.parts.processes import HANGING, start_python


class Demo(DataKeys):
    """Demo keys"""

    size: int = Field(3, ge=1, le=9, description="how big [in metres]")
    name: str = Field(description="what it is called")
    mode: Literal["fast", "slow"] | None = Field(None, description="how")
    rate: float = Field(1e-6, gt=0, description="how quick")


class DemoOptions(YamlOptions[Demo]):
    description = "What the demo does."
    schema = Demo


def run(argv: list[str]) -> tuple[int, list[Demo]]:
    seen: list[Demo] = []
    return run_command(DemoOptions, lambda options: seen.append(options.settings), argv), seen


def test_help_lists_every_key_with_kind_default_and_meaning(capsys):
    assert run(["--help"]) == (0, [])
    text = capsys.readouterr().out
    assert text.startswith("What the demo does.")
    line = {words[0]: " ".join(words) for words in map(str.split, text.splitlines()) if words}
    assert line["--size"] == "--size int >= 1, <= 9 3 how big [in metres]"
    assert line["--name"] == "--name text required what it is called"
    assert line["--mode"] == "--mode fast | slow null how"
    assert line["--rate"] == "--rate float > 0 1.0e-06 how quick"
    assert line["--drop_overlap"].startswith("--drop_overlap true | false false leave out")
    assert line["--debug"] == "--debug show the traceback of an error"
    assert (
        text.index("Demo keys") < text.index("--size") < text.index("Prompts and responses") < text.index("--context")
    )


def test_key_rows_of_the_ppo_configuration_name_every_described_key_once():
    rows = {row.key: row for row in command_line.key_rows(Config)}
    assert len(rows) == len(list(command_line.key_rows(Config)))
    assert {"env.args.data_path", "reward_class.id", "reward_class.args"} <= set(rows)
    assert set(Config.model_fields) == {key.split(".")[0] for key in rows}
    defaults = {"kl_coef": "0.2", "vec_info_class.id": "NLPVecInfo", "model_path": "required", "ref_model": "null"}
    assert {key: rows[key].default for key in defaults} == defaults
    assert rows["kl_coef"].group == "Reward and KL"


def exit_code_of(run, debug, folders=()):
    with command_line.exit_code(debug, folders) as ending:
        run()
    return ending.code


def test_a_second_interrupt_while_python_exits_ends_the_process_without_a_traceback():
    """It comes in what a library, imported by the command, does at the exit."""
    code = """
import atexit, os, signal, sys
from rlhf_dialog.commands.command_line import exit_code
with exit_code(debug=False) as ending:
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
    raise KeyboardInterrupt
sys.exit(ending.code)
"""
    process = start_python("-c", code, stderr=subprocess.PIPE)
    assert (process.communicate(timeout=HANGING)[1], process.returncode) == ("interrupted\n", -signal.SIGINT)


@pytest.mark.parametrize(("error", "code"), [(UserError("a"), 2), (RunStopped("b"), 3), (KeyboardInterrupt(), 130)])
def test_exit_codes(error, code, capsys):
    def fail() -> None:
        raise error

    assert exit_code_of(fail, debug=False) == code
    assert "Traceback" not in capsys.readouterr().err
    assert exit_code_of(fail, debug=True) == code
    assert ("Traceback" in capsys.readouterr().err) == (code != 130)


@pytest.mark.parametrize("wrapper", [None, UserError("a reward that catches all")])
def test_a_full_gpu_is_no_bug(wrapper, capsys):
    def fail() -> None:
        error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")
        raise wrapper or error from (error if wrapper else None)

    assert exit_code_of(fail, debug=False) == 3
    assert capsys.readouterr().err.startswith("error: the GPU has no memory left (2.50 GiB asked for); ")


def break_down() -> None:
    raise ZeroDivisionError("division\nby \x1b[2Jzero")


@pytest.mark.parametrize("name", ["run/error.log", "rlhf_dialog_error.log", "rlhf_dialog_error_1.log", None])
def test_a_bug_is_one_line_and_leaves_its_traceback(name, tmp_path, monkeypatch, capsys):
    """In the run folder, where only rank 0 writes, else in the working folder, else nowhere."""
    monkeypatch.chdir(tmp_path)
    if name in ("run/error.log", "rlhf_dialog_error_1.log"):
        (tmp_path / "run").mkdir()
        monkeypatch.setenv("RANK", "0" if name == "run/error.log" else "1")
    if name is None:
        (tmp_path / "rlhf_dialog_error.log").mkdir()  # a file there cannot be written
    assert exit_code_of(break_down, debug=False, folders=[tmp_path / "run"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(r"internal error, please report: ZeroDivisionError: division by \x1b[2Jzero; ")
    assert line.endswith(f"is in {tmp_path / name}" if name else "--debug shows the traceback")
    assert name is None or "in break_down" in (tmp_path / name).read_text(encoding="utf-8")
    assert name == "run/error.log" or not (tmp_path / "run/error.log").exists()


def test_what_a_person_reads_has_no_control_characters(capsys):
    command_line.set_up_logging()
    logging.getLogger("rlhf_dialog.demo").info("data: %s", "\x1b]0;owned\x07\nerror: forged")

    def fail() -> None:
        raise UserError("row '\x9b2J\u202e'\nerror: forged")

    assert exit_code_of(fail, debug=False) == 2
    lines = [r"data: \x1b]0;owned\x07", "  error: forged", r"error: row '\x9b2J\u202e'", "  error: forged"]
    assert capsys.readouterr().err.splitlines() == lines


def test_logging_is_set_up_once_and_quiet_about_libraries(capsys):
    command_line.set_up_logging()
    command_line.set_up_logging()
    logging.getLogger("rlhf_dialog.demo").info("ours")
    logging.getLogger("httpx").info("theirs")
    logging.getLogger("httpx").warning("important")
    assert capsys.readouterr().err == "ours\nwarning: important\n"


def test_new_folder_appears_only_when_all_went_well(tmp_path):
    target = tmp_path / "deep" / "out"
    (tmp_path / "deep/.out.partial/old").mkdir(parents=True)  # of a kill
    with command_line.new_folder(str(target)) as folder:
        (folder / "a.txt").write_text("a", encoding="utf-8")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["a.txt"]
    for output in (target, target / "a.txt"):  # a full folder, and a file
        with pytest.raises(UserError, match="output"), command_line.new_folder(str(output)):
            pass
    (tmp_path / "deep" / "empty").mkdir()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for failure, said in ((KeyboardInterrupt(), None), (full, "empty: cannot be written: No space")):
        with pytest.raises(UserError if said else KeyboardInterrupt, match=said):
            fill_and_fail(tmp_path / "deep" / "empty", failure)
    with command_line.new_folder(str(tmp_path / "deep" / "empty")) as folder:
        (folder / "b").write_text("b", encoding="utf-8")
    assert (tmp_path / "deep" / "empty" / "b").exists()
    assert sorted(path.name for path in target.parent.iterdir()) == ["empty", "out"]


def fill_and_fail(output: Path, failure: BaseException) -> None:
    with command_line.new_folder(str(output)) as folder:
        (folder / "half").write_text("", encoding="utf-8")
        raise failure


def test_an_output_that_nobody_reads_ends_quietly():
    read, write = os.pipe()
    os.close(read)
    with start_python("-m", "rlhf_dialog", "schema", stdout=write, stderr=subprocess.PIPE) as process:
        os.close(write)
        _, error = process.communicate(timeout=HANGING)
    assert (process.returncode, error) == (141, "")


def test_a_signal_ends_with_its_code_and_no_half_written_folder_unless_it_was_ignored(tmp_path):
    def work(_):
        with command_line.new_folder(tmp_path / "out"):
            signal.raise_signal(signal.SIGUSR1)

    before = {signum: signal.getsignal(signum) for signum in command_line.ENDING}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        for signum in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)
        with pytest.raises(SystemExit, match=str(128 + signal.SIGUSR1)):
            run_command(Options, work, [])
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        with pytest.raises(SystemExit, match="143"):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    assert list(tmp_path.iterdir()) == []
