#!/usr/bin/env bash
# Packs what a machine with a card and without a network needs to run the kit: benchmarks/gpu/pack.sh OUT [MB]
# Run it in the checkout. OUT gets unpack.sh and parts of at most MB (60), which `unpack.sh` joins there. PYTHON is that
# machine's version (python3.12), which has torch 2.11 for CUDA, transformers, peft and accelerate; other versions of these
# need other versions below. VLLM= packs no engine.
set -euo pipefail
out=$(realpath -m "$1"); megabytes=${2:-60}; here=$(cd "$(dirname "$0")" && pwd); project=$PWD
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/whl"
pip=("${PYTHON:-python3.12}" -m pip)
vllm=${VLLM-vllm==0.26.0}
own="trl==1.16.0 datasets==5.2.0 dill multiprocess gymnasium==1.4.0 Farama-Notifications argcomplete httpx2 httpcore2 truststore
  math-verify latex2sympy2_extended antlr4-python3-runtime==4.13.2 jsonschema jsonschema-specifications referencing rpds-py attrs
  pydantic==2.14.4 pydantic_core==2.50.5 annotated-types typing-inspection gguf hypothesis"
engine="lark==1.2.2 lm-format-enforcer==0.11.3 outlines_core==0.2.14 depyf==0.20.0 compressed-tensors==0.17.0 llguidance==1.7.6
  fastapi==0.136.3 starlette uvicorn anthropic openai jiter openai-harmony==0.0.8 mistral_common interegular
  model-hosting-container-standards prometheus-fastapi-instrumentator pydantic-extra-types pydantic-settings python-dotenv
  python-multipart pyzmq loguru jmespath msgspec partial-json-parser pybase64 python-json-logger setproctitle cachetools cbor2 blake3
  ijson watchfiles astor sniffio docstring_parser xgrammar==0.2.7 opentelemetry-api opentelemetry-sdk opentelemetry-semantic-conventions
  apache-tvm-ffi==0.1.10 mcp mcp-types sse-starlette nvidia-ml-py pycountry"
# shellcheck disable=SC2086 # lists
"${pip[@]}" wheel -q --no-deps -w "$work/whl" $own ${vllm:+$engine} "$project"
"${pip[@]}" download -q --no-deps -d "$work/whl" "$(sed -n 's/^WHEEL = "\(.*\)"/\1/p' proof/real_model.py)"
git archive HEAD | xz -T0 -3 > "$work/project.tar.xz"
if [ -n "$vllm" ]; then  # 114 MB instead of 290: without what a Hopper card does not load
  "${pip[@]}" download -q --no-deps --only-binary :all: -d "$work/wheel" "$vllm"
  mkdir "$work/vllm" && python3 -m zipfile -e "$work"/wheel/*.whl "$work/vllm" && rm -r "$work/wheel"
  (cd "$work/vllm" && rm -rf vllm/vllm-rs vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so vllm/third_party/{fmha_sm100,deep_gemm} \
    vllm/_qutlass_C.abi3.so && tar c . | xz -T0 -6 > "$work/vllm.tar.xz")
  rm -r "$work/vllm"
fi
tar c -C "$work" . | split -b "${megabytes}M" -d - "$out/part."
cp "$here/unpack.sh" "$out/"
du -sb "$out"/*
