#!/bin/sh
# The speed of W's base policy in bf16 on one GPU, for rollout batches of 64 to 1,024 responses; installs nothing, needs no network:
#
#   sh scripts/benchmark_gpu.sh [FOLDER FOR THE JSON FILES] [options of scripts/benchmark.py]
#
# Every batch is learnt in four minibatches, as in W: 20 optimizer steps an iteration. benchmark.py prints tokens/s, the share of
# the time in decoding (generation), the ceilings of matrix product and copy, and how near the update comes to the former.
set -e
here=$(dirname "$0")
python=${PYTHON:-$here/../.venv/bin/python}
[ -x "$python" ] || python=python3
out=${1:-runs/benchmark_gpu}
[ $# -eq 0 ] || shift
mkdir -p "$out"
for batch in 64 128 256 512 1024; do
    "$python" "$here/benchmark.py" --workload W --size base --dtype bf16 --device cuda --rollout_batch_size "$batch" \
        --minibatch $((batch / 4)) --set per_device_microbatch_size=128 --json "$out/base_bf16_$batch.json" "$@"
done
