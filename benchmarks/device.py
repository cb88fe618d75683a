"""Is the device used? `evaluate`, `fit` and `run` beside their compiled parts.

    PYTHONPATH=src python benchmarks/device.py

evaluate: conjugate gradients, d = 5, four steps. fit: a bank of four layers, the second time. run: gradient descent with four
steps on prompts that lie on the device, beside the compiled program without checks. Medians.
"""

import functools
import statistics
import sys
import time

import jax

import lfom
from lfom.core.unroll import unroll

SPECTRUM = [1.0, 1.0, 0.25, 0.0625, 1.0]
SIZES = ((200, 800, 1_000), (50, 200, 10_000), (5, 20, 100_000))  # d, n, prompts


def seconds(work, rounds):
    jax.block_until_ready(work())
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def scoring(prompts):
    data, methods = lfom.LinearRegression(SPECTRUM, 20), {"CGD": lfom.conjugate_gradient(4)}
    lfom.evaluate(methods, data, prompts=prompts, key=jax.random.key(0))
    start = time.perf_counter()
    found = lfom.evaluate(methods, data, prompts=prompts, key=jax.random.key(1))["CGD"]
    took = time.perf_counter() - start
    print(
        f"evaluate: {prompts / took / 1e6:.1f} million prompts/s ({prompts:,} in {took:.3f} s), loss {found.log_loss:.4f}",
        flush=True,
    )


def fitting():
    data = lfom.LinearRegression(SPECTRUM, 20)
    model = lfom.memformer(5, 4, key=jax.random.key(0))
    for attempt in range(4):
        start = time.perf_counter()
        lfom.fit(model, data, key=jax.random.key(attempt))
        print(
            f"fit of a bank of 4 layers, time {attempt + 1}: {time.perf_counter() - start:.3f} s", flush=True
        )


def running():
    method = lfom.gradient_descent(0.1, steps=4)

    @functools.partial(jax.jit, static_argnames="small")
    def bare(method, prompts, small):
        if small:
            w = unroll(method, prompts.problem("iterates"))
            return jax.numpy.moveaxis(w, 1, -1)
        return jax.vmap(lambda one: unroll(method, one.examples()), out_axes=1)(prompts)

    for d, n, count in SIZES:
        prompts = jax.block_until_ready(lfom.LinearRegression([1.0] * d, n).at_once(jax.random.key(0), count))
        whole = seconds(lambda prompts=prompts: lfom.run(method, prompts).predictions, 15)
        part = seconds(lambda prompts=prompts, d=d: bare(method, prompts, d <= 16), 15)
        print(
            f"run, d = {d}, n = {n}, {count:,} prompts: {1e3 * whole:.2f} ms, its compiled part {1e3 * part:.2f} ms: {whole / part:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    print("device:", jax.devices()[0].device_kind, "jax", jax.__version__)
    scoring(int(float(sys.argv[1])) if len(sys.argv) > 1 else 2_000_000)
    fitting()
    running()
