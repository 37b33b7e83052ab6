"""A machine that was not measured, whose numbers are easy to divide."""

from rlhf_dialog.distributed.machine import Gpu, Machine

GIB = 2**30
LAPTOP = Machine(
    processor="Some CPU",
    cores=4,
    threads=4,
    capability="AVX2",
    extensions=("avx2",),
    float32=100.0,
    bfloat16=20.0,
    emulates_bfloat16=True,
    load=0.5,
    memory_total=16 * GIB,
    memory_available=12 * GIB,
    memory_limit=None,
    gpus=(),
    folder="/home/me",
    disk_free=50 * GIB,
)
GPU = Gpu("Some GPU", 80 * GIB, 79 * GIB, float32=50_000.0, bfloat16=400_000.0, has_bfloat16=True)
