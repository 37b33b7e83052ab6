"""What the system says of the processor, and what memory is free: of the machine, of its control groups, and here."""

from pathlib import Path

from rlhf_dialog.distributed.machine import host_memory, processor


def test_the_processor_and_its_flags(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 amx_bf16\n\nprocessor\t: 1\n")
    assert processor(path) == ("Some CPU @ 2 GHz", {"fpu", "avx2", "amx_bf16"})
    name, flags = processor(tmp_path / "absent")
    assert name
    assert flags == set()


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


def test_memory_here():
    free, total = host_memory()
    assert (free is None and total is None) or 0 < free <= total
