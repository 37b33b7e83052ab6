"""Measure this machine: what it has, which optional packages are missing, and which runs fit."""

import json
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import rlhf_dialog
from rlhf_dialog.commands.options import Options, option, run_command

if TYPE_CHECKING:
    from rlhf_dialog.distributed.machine import Machine
    from rlhf_dialog.distributed.memory.common_runs import CommonRun

WIDTH = 100
CHECKOUT = Path(rlhf_dialog.__file__).resolve().parents[1]
EXTRAS = {  # package: the extra of pyproject.toml that has it, what it is for
    "gguf": ("gguf", "the weights of SmolLM2"),
    "gradio": ("chat", "the page of `feedback serve`"),
    "deepspeed": ("deepspeed", "ZeRO on several GPUs (use_deepspeed)"),
}
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


class DoctorOptions(Options):
    description = (
        "Measure this machine in about 20 seconds: products of matrices, memory, GPUs, instructions, disk, optional\n"
        "packages. Show which runs fit into its memory. Opens no connection and writes nothing."
    )

    json: bool = option("print the same as JSON")


@dataclass(frozen=True)
class Package:
    """An optional package. version: None where it is missing; install: the command that installs it."""

    name: str
    version: str | None
    purpose: str
    install: str


def run(options: DoctorOptions) -> None:
    from rlhf_dialog.distributed.machine import measure
    from rlhf_dialog.distributed.memory.common_runs import common_runs

    folder = Path.cwd()
    machine = measure(folder)
    packages = optional_packages(folder)
    runs = common_runs(machine)
    if options.json:
        rows = [asdict(run) | {"fits": run.fits} for run in runs]
        columns = {"machine": asdict(machine), "packages": [asdict(package) for package in packages], "runs": rows}
        print(json.dumps(columns, indent=1, ensure_ascii=False))
        return
    print("This machine", *machine_lines(machine), "", "Optional packages", *package_lines(packages), "", sep="\n")
    print("What fits, by a forecast of its memory", *run_lines(runs, packages), sep="\n")


def optional_packages(folder: Path) -> list[Package]:
    """What is installed of the optional packages, without importing one. The commands are for somebody in `folder`."""
    packages = [Package(name, _version(name), what, _install(extra, folder)) for name, (extra, what) in EXTRAS.items()]
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    return [*packages, Package("chromium", chromium, "tests of the page in a browser", "apt-get install chromium")]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _install(extra: str, folder: Path) -> str:
    """The command that adds an extra to this checkout; without a checkout, the requirements of the extra itself."""
    if (CHECKOUT / "pyproject.toml").is_file():
        place = "." if folder.resolve() == CHECKOUT else str(CHECKOUT)
        return f'pip install -e "{place}[{extra}]"'
    wanted = [line for line in metadata.requires("rlhf-dialog") or [] if f'extra == "{extra}"' in line]
    return "pip install " + " ".join(f'"{line.partition(";")[0].strip()}"' for line in wanted)


def machine_lines(machine: "Machine") -> Iterator[str]:
    """One line or more for each thing that was measured."""
    extensions = f" ({', '.join(machine.extensions)})" if machine.extensions else ""
    yield from _row("processor", f"{machine.processor}, {machine.cores} cores, {machine.threads} threads of torch")
    yield from _row("instructions", f"torch uses {machine.capability}{extensions}")
    emulated = ", which it emulates" if machine.emulates_bfloat16 else ""
    load = "" if machine.load is None else f"; load average {machine.load:.1f} before, other work makes them slower"
    speeds = f"float32 {machine.float32:,.0f} GFLOP/s, bfloat16 {machine.bfloat16:,.0f} GFLOP/s"
    yield from _row("products", f"{speeds}{emulated}{load}")
    limit = "" if machine.memory_limit is None else f"; limit of the control group {_gib(machine.memory_limit)}"
    yield from _row("memory", f"{_gib(machine.memory_total)}, {_gib(machine.memory_available)} available{limit}")
    for gpu in machine.gpus:
        bfloat16 = f"bfloat16 {gpu.bfloat16:,.0f} GFLOP/s" if gpu.has_bfloat16 else "no bfloat16"
        memory = f"{_gib(gpu.free)} of {_gib(gpu.total)} free"
        yield from _row("GPU", f"{gpu.name}, {memory}; float32 {gpu.float32:,.0f} GFLOP/s, {bfloat16}")
    if not machine.gpus:
        yield from _row("GPU", "none that torch can use")
    yield from _row("disk", f"{_gib(machine.disk_free)} free in {machine.folder}")


def package_lines(packages: list[Package]) -> Iterator[str]:
    """Version and purpose of each, or how to install it."""
    for package in packages:
        missing = f"missing: {package.purpose}; {package.install}"
        yield from _row(package.name, missing if package.version is None else f"{package.version}: {package.purpose}")


def run_lines(runs: "list[CommonRun]", packages: list[Package]) -> Iterator[str]:
    """For each run whether it fits, and what it needs first."""
    missing = {package.name: package.install for package in packages if package.version is None}
    for run in runs:
        memory = f"{_gib(run.bytes_needed)} of memory, of {_gib(run.bytes_available)} available"
        yield from wrap_lines(f"{run.what}: {'fits' if run.fits else 'does not fit'}: it needs {memory}", "  ", "    ")
        for name in run.extras:
            if name in missing:
                yield from wrap_lines(f"first: {missing[name]}", "    ", "      ")


def wrap_lines(text: str, first: str = "  ", then: str = "  ") -> list[str]:
    """The text in lines of at most WIDTH letters; a path or a name that is longer is not divided."""
    wrapper = textwrap.TextWrapper(WIDTH, first, then, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)


def _row(name: str, text: str) -> list[str]:
    return wrap_lines(f"{name:<14}{text}", "  ", " " * 16)


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"


main = partial(run_command, DoctorOptions, run)  # the command line; returns the exit code
