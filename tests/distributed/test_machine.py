"""What the system says of the processor."""

from rlhf_dialog.distributed.machine import processor


def test_the_processor_and_its_flags(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 amx_bf16\n\nprocessor\t: 1\n")
    assert processor(path) == ("Some CPU @ 2 GHz", {"fpu", "avx2", "amx_bf16"})
    name, flags = processor(tmp_path / "absent")
    assert name
    assert flags == set()
