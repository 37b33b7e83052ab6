"""What is free and there in all: of the machine, of its control groups, and here."""

from pathlib import Path

from rlhf_dialog.distributed.free_memory import host_memory


def write(folder: Path, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")


def test_memory_of_the_machine_and_of_its_control_groups(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    assert host_memory(proc, groups) == (None, None)
    write(proc, meminfo="MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:     500 kB\n")
    machine = 500 * 1024, 900 * 1024
    assert host_memory(proc, groups) == machine
    write(proc / "self", cgroup="0::/a/b\n")
    write(groups / "a" / "b", memory__max="max\n", memory__current="10\n")
    assert host_memory(proc, groups) == machine
    above = {"memory__max": "300000\n", "memory__current": "100000\n", "memory__stat": "anon 5\ninactive_file 50000\n"}
    write(groups / "a", **above)
    assert host_memory(proc, groups) == (250_000, 300_000)  # a limit above, and pages of files
    write(groups / "a" / "b", memory__max="1000\n", memory__current="5000\n")
    assert host_memory(proc, groups) == (0, 1000)
    write(proc / "self", cgroup="5:cpu:/a/b\n4:memory:/docker/c\n")
    assert host_memory(proc, groups) == machine
    limits = {"memory__limit_in_bytes": "7000", "memory__usage_in_bytes": "3000"}
    write(groups / "memory", **limits, memory__stat="total_inactive_file 5")
    assert host_memory(proc, groups) == (4005, 7000)  # in a container the path of the host is not there
    write(groups / "memory", memory__limit_in_bytes=f"{2**63 - 4096}\n")  # how v1 writes that there is none
    assert host_memory(proc, groups) == machine


def test_memory_here():
    free, total = host_memory()
    assert (free is None and total is None) or 0 < free <= total
