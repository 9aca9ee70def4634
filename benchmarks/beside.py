"""A model server beside a trainer: seconds of a push of new weights, idle and while it plays; bytes of a turn.

    python benchmarks/beside.py [--out FILE] [--pushes N]

One vLLM server with a model of 0.4 M random parameters, on the same machine. Weights are pushed in turn with nobody
playing, and with 64 callers that ask for a turn of 20 tokens and then wait for 200 ms on average: the ratio of the two
does not depend much on the machine's speed. Needs vLLM, on a CPU `VLLM_CPU_KVCACHE_SPACE=1`. Takes a minute.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from measuring import Column, Figure, Report, finish, make_parser
from pages import pages_tokenizer, save_model

from llm_envs.policies import VLLMServerPolicy, start_servers
from llm_envs.policies.vllm.formats import TurnRequest, VLLMFormat
from llm_envs.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

METHOD = (
    "One vLLM server with a model of 0.4 M parameters, on the same two cores. *Push*: `update_weights`, medians, with "
    "nobody playing, and while 64 callers ask for turns of 20 tokens with waits of 200 ms; *paused*: while no turn "
    "begins. *Bytes*: of a turn's HTTP, headers included; token ids have three digits."
)
COLUMNS = [
    Column("part", "part"),
    Column("n", "number", ",d"),
    Column("seconds", "seconds", ".3f"),
    Column("paused_s", "paused, s", ".3f"),
    Column("prompt", "prompt, tokens"),
    Column("sampled", "sampled, tokens"),
    Column("request_bytes", "request, bytes", ",d"),
    Column("reply_bytes", "reply, bytes", ",d"),
]
N_CALLERS, N_TOKENS, WAIT_S = 64, 20, 0.2


class Callers:
    """Ask for turns in a second thread while `playing`."""

    def __init__(self, policy: VLLMServerPolicy) -> None:
        self._policy, self._is_over = policy, False

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Play in the block."""
        self._is_over = False
        thread = threading.Thread(target=lambda: asyncio.run(self._all()))
        thread.start()
        try:
            time.sleep(1.0)
            yield
        finally:
            self._is_over = True
            thread.join()

    async def _all(self) -> None:
        await asyncio.gather(*map(self._one, range(N_CALLERS)))

    async def _one(self, number: int) -> None:
        random = np.random.default_rng(number)
        params = SamplingParams(max_new_tokens=N_TOKENS, extra={"min_tokens": N_TOKENS})
        while not self._is_over:
            await asyncio.sleep(random.exponential(WAIT_S))
            prompt = random.integers(100, 400, 300).astype(np.int32)
            await self._policy.sample(prompt, params, seed=number, session=str(number))


def measure_pushes(
    policy: VLLMServerPolicy, callers: Callers, weights: list[tuple[str, Any]], n_pushes: int
) -> list[dict[str, Any]]:
    """Return the median seconds of a push to the idle server, and to the same one while it plays."""
    found: dict[str, list[tuple[float, float]]] = {"push, idle": [], "push, playing": []}
    load, paused = policy._load, [0.0]

    def timed(*given: Any) -> None:
        began = time.perf_counter()
        load(*given)
        paused[0] = time.perf_counter() - began

    policy._load = timed  # type: ignore[assignment, method-assign]
    version = 0

    def push(part: str) -> None:
        nonlocal version
        version += 1
        began = time.perf_counter()
        policy.update_weights(weights, version)
        found[part].append((time.perf_counter() - began, paused[0]))
        time.sleep(0.3)

    for _ in range(4):
        for _ in range(n_pushes // 4):
            push("push, idle")
        with callers.playing():
            for _ in range(n_pushes // 4):
                push("push, playing")
    rows = []
    for part, times in found.items():
        seconds, paused_s = (statistics.median(values) for values in zip(*times, strict=True))
        rows.append({"part": part, "n": len(times), "seconds": seconds, "paused_s": paused_s})
    return rows


def measure_bytes(url: str, model: str, n_prompt: int, n_tokens: int) -> dict[str, Any]:
    """Return the bytes of a turn's request and reply."""
    import httpx2

    params = SamplingParams(max_new_tokens=n_tokens, extra={"min_tokens": n_tokens})
    prompt = np.random.default_rng(0).integers(100, 400, n_prompt).astype(np.int32)
    body = VLLMFormat().request(TurnRequest(prompt, params, n_tokens, 2**62, [2]), model=model, salt="")
    reply = httpx2.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=60)
    reply.raise_for_status()
    request_bytes, reply_bytes = (
        len(http.content) + sum(len(name) + len(value) + 4 for name, value in http.headers.raw)
        for http in (reply.request, reply)
    )
    row = {"part": "bytes of a turn", "n": 1, "prompt": n_prompt, "sampled": n_tokens}
    return row | {"request_bytes": request_bytes, "reply_bytes": reply_bytes}


def main() -> int:
    """Run the benchmark."""
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--pushes", type=int, default=40, help="of each kind")
    options = parser.parse_args()
    from transformers import AutoModelForCausalLM

    tokenizer = pages_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), tokenizer)
        model = AutoModelForCausalLM.from_pretrained(folder)
        weights = [(name, parameter.detach()) for name, parameter in model.named_parameters()]
        args = ("--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "256")
        env = {"OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        with start_servers(folder, 1, args=args, env=env) as servers:
            policy = VLLMServerPolicy(servers.urls, tokenizer)
            callers = Callers(policy)
            rows = measure_pushes(policy, callers, weights, options.pushes)
            for size in ((100, 16), (500, 16), (100, 216)):
                rows.append(measure_bytes(servers.urls[0], folder, *size))
            asyncio.run(policy.aclose())
    idle, playing = (row["seconds"] for row in rows[:2])
    figures = [Figure("a push while playing, of an idle one", playing / idle, "times", "lower")]
    return finish(Report("beside", "Beside a trainer", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
