"""What is free: of the machine, of its control groups, and here."""

from pathlib import Path

from rlhf_dialog.distributed.memory.free_memory import free_on_host, limit_on_host, total_on_host


def write(folder: Path, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")


def test_free_memory_of_the_machine_and_of_its_control_groups(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    assert free_on_host(proc, groups) is None
    write(proc, meminfo="MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:     500 kB\n")
    assert free_on_host(proc, groups) == 500 * 1024
    write(proc / "self", cgroup="0::/a/b\n")
    write(groups / "a" / "b", memory__max="max\n", memory__current="10\n")
    assert free_on_host(proc, groups) == 500 * 1024
    write(
        groups / "a", memory__max="300000\n", memory__current="100000\n", memory__stat="anon 5\ninactive_file 50000\n"
    )
    assert free_on_host(proc, groups) == 250_000  # a limit above, and pages of files
    write(groups / "a" / "b", memory__max="1000\n", memory__current="5000\n")
    assert free_on_host(proc, groups) == 0
    write(proc / "self", cgroup="5:cpu:/a/b\n4:memory:/docker/c\n")
    assert free_on_host(proc, groups) == 500 * 1024
    limits = {
        "memory__limit_in_bytes": "7000",
        "memory__usage_in_bytes": "3000",
        "memory__stat": "total_inactive_file 5",
    }
    write(groups / "memory", **limits)  # in a container the path of the host is not there
    assert free_on_host(proc, groups) == 4005


def test_the_lowest_limit_of_the_control_groups_counts(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    assert (total_on_host(proc), limit_on_host(proc, groups)) == (None, None)
    write(proc, meminfo="MemTotal: 900 kB\nMemAvailable:     500 kB\n")
    write(proc / "self", cgroup="0::/a/b\n")
    write(groups / "a" / "b", memory__max="max\n", memory__current="10\n")
    assert (total_on_host(proc), limit_on_host(proc, groups)) == (900 * 1024, None)
    write(groups / "a", memory__max="300000\n", memory__current="1\n")
    assert limit_on_host(proc, groups) == 300_000
    write(groups / "a" / "b", memory__max="200000\n", memory__current="1\n")
    assert limit_on_host(proc, groups) == 200_000
    write(
        groups / "a" / "b", memory__max=f"{2**63 - 4096}\n", memory__current="1\n"
    )  # how v1 writes that there is none
    write(groups / "a", memory__max="max\n", memory__current="1\n")
    assert limit_on_host(proc, groups) is None


def test_free_memory_here():
    found = free_on_host()
    assert found is None or found > 0
