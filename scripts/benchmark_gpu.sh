#!/bin/sh
# Measure the speed of W's base policy in bf16 on one GPU, for rollouts of 64 to 1,024 responses. Installs nothing, needs no network.
#
#   sh scripts/benchmark_gpu.sh [FOLDER FOR THE JSON FILES] [options of scripts/benchmark.py]
#
# Every rollout is divided into four minibatches, as in W: 20 optimizer steps per iteration. benchmark.py prints tokens/s, the share
# of the time spent in generation, the speed of matrix product and copy, and the speed of the update relative to the matrix product.
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
