"""Seconds from a method of 50 layers to its first answer, compilation included, on the device that JAX finds; and of a second one.

python benchmarks/first_call.py
"""

import time
from typing import Any

import jax

import lfom

D, LAYERS, PROMPTS = 5, 50, 1_000
MODELS: dict[str, dict[str, Any]] = {
    "register": {"memory": "register"},
    "bank": {"memory": "bank"},
    "GD++": {"memory": "none", "covariates": True},
}


def main() -> None:
    data = lfom.LinearRegression(lfom.PUBLISHED_SPECTRUM, context=20)
    prompts = jax.block_until_ready(data.prompts(jax.random.key(0), PROMPTS))
    print(f"{jax.default_backend()}, jax {jax.__version__}, d = {D}, {LAYERS} layers, {PROMPTS:,} prompts")
    for name, options in MODELS.items():
        seconds = []
        for number in range(2):
            model = lfom.memformer(D, LAYERS, key=jax.random.key(number), **options)
            begun = time.perf_counter()
            jax.block_until_ready(lfom.run(model, prompts).predictions)
            seconds.append(time.perf_counter() - begun)
        print(f"{name:8} first {seconds[0]:.2f} s, another one {seconds[1]:.4f} s", flush=True)


if __name__ == "__main__":
    main()
