"""Layers as a scan against layers written out: seconds to the first answer, and milliseconds of a gradient.

    python benchmarks/layers.py            # d = 5, 1,000 prompts, depths 4, 8, 10 and 50

A row is one memory and one depth. "first call" is `lfom.run` on a batch of prompts, compilation included; the
gradient is that of the mean loss in every number of the model. Written out, 50 layers compile for minutes:
they are measured up to the depth given by --most. --variants: instead the gradient of a scan as it is, of one with several
layers a turn (`unroll=`), and of one that computes its layers again on the way back (`jax.checkpoint`).
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lfom
from lfom.core import unroll
from lfom.core.problems import Quadratic
from lfom.training.adam import mean_loss

D, CONTEXT, PROMPTS = 5, 20, 1_000
MODELS: dict[str, dict[str, Any]] = {
    "none": {"memory": "none"},
    "register": {"memory": "register"},
    "bank": {"memory": "bank"},
    "GD++": {"memory": "none", "covariates": True},
}


def model_of(name: str, depth: int) -> Any:
    return lfom.memformer(D, depth, scale=0.02, key=jax.random.key(0), **MODELS[name])


def milliseconds(program: Any, *arguments: Any) -> float:
    jax.block_until_ready(program(*arguments))
    times = []
    for _ in range(15):
        start = time.perf_counter()
        jax.block_until_ready([program(*arguments) for _ in range(3)])
        times.append((time.perf_counter() - start) / 3)
    return min(times) * 1e3


def gradient_row(name: str, depth: int, prompts: Quadratic, written_out: bool) -> tuple[float, float]:
    """Seconds to compile, and milliseconds of one gradient."""
    limit = 10_000 if written_out else 0
    unroll.WRITTEN_OUT = unroll.WRITTEN_OUT_COVARIATES = limit
    model, active = model_of(name, depth), jnp.ones(depth)
    start = time.perf_counter()
    program = jax.jit(jax.grad(lambda m: mean_loss(m, prompts, active))).lower(model).compile()
    return time.perf_counter() - start, milliseconds(program, model)


def variants(depths: list[int], prompts: Quadratic) -> None:
    """Milliseconds of a gradient; in turn, so that a busy moment does not hit one of them alone."""
    scan = jax.lax.scan
    ways: dict[str, Any] = {
        "as it is": scan,
        "unroll=2": lambda *given: scan(*given, unroll=2),
        "unroll=4": lambda *given: scan(*given, unroll=4),
        "again": lambda body, *rest: scan(jax.checkpoint(body), *rest),
    }
    print("model     depth  " + "  ".join(f"{way:>10}" for way in ways) + "   (ms)", flush=True)
    for name in MODELS:
        for depth in depths:
            found: dict[str, list[float]] = {way: [] for way in ways}
            for way in [*ways, *ways]:
                jax.lax.scan = ways[way]
                found[way].append(gradient_row(name, depth, prompts, False)[1])
                jax.lax.scan = scan
            print(
                f"{name:9s} {depth:5d}  " + "  ".join(f"{min(own):10.3f}" for own in found.values()),
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--depths", type=int, nargs="*", default=[4, 8, 10, 50])
    parser.add_argument("--most", type=int, default=10, help="the deepest that is also written out")
    parser.add_argument("--variants", action="store_true")
    wanted = parser.parse_args()
    data = lfom.LinearRegression(lfom.PUBLISHED_SPECTRUM, CONTEXT)
    batch = data.prompts(jax.random.key(1), PROMPTS)
    prompts = jax.jit(Quadratic.of)(batch)
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, d = {D}, {PROMPTS:,} prompts", flush=True)
    if wanted.variants:
        variants(wanted.depths, prompts)
        return
    print("model     depth  first call | gradient: scan (compile)  written out (compile)", flush=True)
    limits = unroll.WRITTEN_OUT, unroll.WRITTEN_OUT_COVARIATES
    for name in MODELS:
        for depth in wanted.depths:
            unroll.WRITTEN_OUT, unroll.WRITTEN_OUT_COVARIATES = limits
            start = time.perf_counter()
            answers = lfom.run(model_of(name, depth), batch).predictions
            assert np.isfinite(np.asarray(answers)).all()
            first = time.perf_counter() - start
            compiled, scan = gradient_row(name, depth, prompts, False)
            row = f"{name:9s} {depth:5d}  {first:8.2f} s | {scan:9.3f} ms ({compiled:.2f} s)"
            if depth <= wanted.most:
                compiled, out = gradient_row(name, depth, prompts, True)
                row += f"   {out:9.3f} ms ({compiled:.2f} s)"
            print(row, flush=True)


if __name__ == "__main__":
    main()
