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
from rlhf_dialog.commands.options import YamlOptions, run_command
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


def test_settings_reach_main_from_file_and_command_line(tmp_path, capsys):
    path = tmp_path / "demo.yaml"
    path.write_text("name: x\nsize: 2\nrate: 1e-3\n", encoding="utf-8")
    code, seen = run(["--config", str(path), "--size", "5"])
    assert code == 0
    assert (seen[0].name, seen[0].size, seen[0].rate, seen[0].context_size) == ("x", 5, 0.001, 5)
    assert f"config: {path}" in capsys.readouterr().err


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
    rows = list(command_line.key_rows(Config))
    keys = [row.key for row in rows]
    assert len(keys) == len(set(keys))
    assert {"env.args.data_path", "kl_coef", "lr", "reward_class.id", "use_deepspeed"} <= set(keys)
    assert {row.group for row in rows if row.key == "kl_coef"} == {"Reward and KL"}
    assert next(row.default for row in rows if row.key == "vec_info_class.id") == "NLPVecInfo"


def test_print_config_writes_yaml_that_loads_again(capsys, tmp_path):
    assert run(["--print_config", "--name", "x"])[0] == 0
    printed = capsys.readouterr().out
    path = tmp_path / "again.yaml"
    path.write_text(printed, encoding="utf-8")
    code, seen = run(["--config", str(path)])
    assert code == 0
    assert seen[0] == Demo(name="x")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["name: missing"]),
        (["--name", "x", "--siz", "2"], ["siz: unknown key", "did you mean 'size'"]),
        (["--name", "x", "--size", "10"], ["size: found 10"]),
        (["--config", "nowhere.yaml"], ["nowhere.yaml", "not found"]),
        (["name"], ["--key value"]),
    ],
)
def test_mistakes_of_the_user_are_exit_code_2_without_traceback(argv, words, capsys):
    code, seen = run(argv)
    error = capsys.readouterr().err
    assert (code, seen) == (2, [])
    assert error.startswith("error: ")
    assert all(word in error for word in words)
    assert "Traceback" not in error


def exit_code_of(run, debug, folders=()):
    with command_line.exit_code(debug, folders) as ending:
        run()
    return ending.code


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
    error = capsys.readouterr().err
    assert error.startswith("error: the GPU has no memory left (2.50 GiB asked for); close other programs")
    assert "or choose a smaller model or device: cpu" in error


def break_down() -> None:
    raise ZeroDivisionError("division\nby \x1b[2Jzero")


@pytest.mark.parametrize("name", ["run/error.log", "rlhf_dialog_error.log", None])
def test_a_bug_is_one_line_and_leaves_its_traceback(name, tmp_path, monkeypatch, capsys):
    """In the run folder, else in the working folder, else nowhere."""
    monkeypatch.chdir(tmp_path)
    if name == "run/error.log":
        (tmp_path / "run").mkdir()
    if name is None:
        (tmp_path / "rlhf_dialog_error.log").mkdir()  # a file there cannot be written
    assert exit_code_of(break_down, debug=False, folders=[tmp_path / "run"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(r"internal error, please report: ZeroDivisionError: division by \x1b[2Jzero; ")
    assert line.endswith(f"is in {tmp_path / name}" if name else "--debug shows the traceback")
    assert name is None or "in break_down" in (tmp_path / name).read_text(encoding="utf-8")


def test_debug_shows_the_traceback_of_a_bug(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert exit_code_of(break_down, debug=True) == 70
    text = capsys.readouterr().err
    assert text.startswith("Traceback")
    assert "in break_down" in text
    assert "\x1b" not in text


def test_another_rank_leaves_the_file_of_rank_0_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "error.log").write_text("of rank 0", encoding="utf-8")
    assert exit_code_of(break_down, debug=False, folders=[tmp_path]) == 70
    assert (tmp_path / "error.log").read_text(encoding="utf-8") == "of rank 0"
    assert (tmp_path / "rlhf_dialog_error_1.log").is_file()


def test_what_a_person_reads_has_no_control_characters(capsys):
    command_line.set_up_logging()
    logging.getLogger("rlhf_dialog.demo").info("data: %s", "\x1b]0;owned\x07\nerror: forged")

    def fail() -> None:
        raise UserError("row '\x9b2J\u202e'\nerror: forged")

    assert exit_code_of(fail, debug=False) == 2
    lines = [r"data: \x1b]0;owned\x07", "  error: forged", r"error: row '\x9b2J\u202e'", "  error: forged"]
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
@pytest.mark.parametrize("argv", ["['--help']", "['--print_config']"])
def test_an_output_that_nobody_reads_ends_quietly(argv, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from rlhf_dialog.commands.options import YamlOptions, run_command\n"
        "from rlhf_dialog.config.settings import DataKeys\n"
        "class Demo(YamlOptions):\n"
        "    schema, description = DataKeys, 'demo'\n"
        f"sys.exit(run_command(Demo, lambda options: print(options.settings), {argv}))\n",
        encoding="utf-8",
    )
    read, write = os.pipe()
    os.close(read)
    with start_python(script, stdout=write, stderr=subprocess.PIPE) as process:
        os.close(write)
        _, error = process.communicate(timeout=HANGING)
    assert (process.returncode, error) == (141, "")


def test_logging_is_set_up_once_and_quiet_about_libraries(capsys):
    command_line.set_up_logging()
    command_line.set_up_logging()
    logging.getLogger("rlhf_dialog.demo").info("ours")
    logging.getLogger("httpx").info("theirs")
    logging.getLogger("httpx").warning("important")
    assert capsys.readouterr().err == "ours\nwarning: important\n"


def test_new_folder_appears_only_when_all_went_well(tmp_path):
    target = tmp_path / "deep" / "out"
    with command_line.new_folder(str(target)) as folder:
        (folder / "a.txt").write_text("a", encoding="utf-8")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["a.txt"]
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def fill_and_fail(output: Path) -> None:
    with command_line.new_folder(str(output)) as folder:
        (folder / "half").write_text("", encoding="utf-8")
        raise KeyboardInterrupt


def test_new_folder_leaves_nothing_behind_after_an_error(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fill_and_fail(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_new_folder_removes_what_dead_processes_left(tmp_path):
    """And not what a living one writes, nor what is of another output."""
    dead, living = 2**22 + 9, os.getppid()  # Linux gives numbers below 2**22
    gone = [f".out.{dead}.partial", f".out.{os.getpid()}.partial"]
    kept = [f".out.{living}.partial", f".outer.{dead}.partial", ".out.partial", f".out.{'9' * 30}.partial"]
    for name in (*gone, *kept):
        (tmp_path / name).mkdir()
    with command_line.new_folder(str(tmp_path / "out")):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "out"}


def test_new_folder_says_that_the_disk_is_full(tmp_path):
    with pytest.raises(UserError, match="out: cannot be written: No space"), command_line.new_folder(tmp_path / "out"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_new_folder_takes_an_empty_folder_and_refuses_a_full_one_and_a_file(tmp_path):
    with command_line.new_folder(str(tmp_path / "x")) as folder:
        (folder / "a").write_text("a", encoding="utf-8")
    for output in (tmp_path / "x", tmp_path / "x" / "a"):
        with pytest.raises(UserError, match="output"), command_line.new_folder(str(output)):
            pass
    (tmp_path / "empty").mkdir()
    with command_line.new_folder(str(tmp_path / "empty")) as folder:
        (folder / "b").write_text("b", encoding="utf-8")
    assert (tmp_path / "empty" / "b").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "x"]


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_sigterm_ends_with_143_and_no_half_written_folder(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\n"
        "from rlhf_dialog.commands import command_line\n"
        "from rlhf_dialog.commands.options import Options, run_command\n"
        "def main(options):\n"
        f"    with command_line.new_folder({str(tmp_path / 'out')!r}):\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "sys.exit(run_command(Options, main, []))\n",
        encoding="utf-8",
    )
    with start_python(script, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGING) == 143
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_the_home_folder_in_an_argument(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert command_line.home_path("~/x") == tmp_path / "x"
    assert command_line.home_path("x/~") == Path("x/~")
    assert command_line.home_path("./~nosuch/x") == Path("~nosuch/x")
