"""Flags of XLA for the command line: who computes sums on a CPU, what a loop is there, and what is compiled at once.

Sums: XLA's own compiler, or the library YNNPACK.

From 0.10.2 on jaxlib hands them to YNNPACK. That is wrong in 0.10.2 and 0.11.0 (jax-ml/jax#39103: we refuse
these versions), and slow for sums as short as ours: 30 times for an Adam step with 0.11.2. One flag of XLA
turns it off for a whole process. The command line sets it. A library should not, so where the flag is not
set `lfom.core.arrays` writes its sums as loops.

Loops: XLA starts every operation of a loop's body anew at each turn, and shares it among cores that are busy with
other loops: scores of 5 unknowns took 70 to 90 ns per prompt and method on two cores, and one process for each core
40. Where the flag allows it, a loop without products of matrices, sorting or scattering is one function: 30.
"""

import functools
import os
from typing import Any

import equinox as eqx
import jax

FIRST_HANDED_OVER = (0, 10, 2)
# a flag that jaxlib does not know ends the process, so newer ones are left alone
FIRST_NOT_TRIED = (0, 12, 1)
FLAG = "--xla_cpu_experimental_ynn_fusion_type"
PRODUCTS_ALONE = f"{FLAG}=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"


def sums_are_handed_over() -> bool:
    return jax.__version_info__ >= FIRST_HANDED_OVER and FLAG not in os.environ.get("XLA_FLAGS", "")


def keep_sums() -> None:
    """Have XLA compile sums itself. To be called before anything is computed: flags are read once."""
    if sums_are_handed_over() and jax.__version_info__ < FIRST_NOT_TRIED:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {PRODUCTS_ALONE}".strip()


LOOPS = "xla_cpu_small_while_loop_byte_threshold"
EXTRA = "--xla_backend_extra_options"  # names that XLA does not know do no harm there
SMALL_LOOP = 2**24  # bytes that a turn of it reads and writes: larger ones are shared among cores


def keep_loops() -> None:
    """Have XLA make a small loop one function. To be called before anything is computed."""
    said = os.environ.get("XLA_FLAGS", "")
    if EXTRA not in said:  # a user's own choice
        os.environ["XLA_FLAGS"] = f"{said} {EXTRA}={LOOPS}={SMALL_LOOP}".strip()


# jaxlib 0.10's older emitters write one module for a whole program, where the newer ones write one for each of its operations,
# at 10 to 20 ms each: programs compile in half to two thirds of the time, and most run as fast (docs/design.md). Later
# versions have no choice.
IN_ONE = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
PLAINLY: dict[str, Any] = IN_ONE if jax.__version_info__ < (0, 11) else {}
jit_plainly: Any = functools.partial(eqx.filter_jit, compiler_options=PLAINLY)
# LLVM's first level, for programs that draw random numbers or take steps of Adam: they compile faster again, and run as
# fast; passes of least squares run up to 3 times slower.
QUICKLY = {"xla_backend_optimization_level": 1} | PLAINLY
jit_draws: Any = functools.partial(eqx.filter_jit, compiler_options=QUICKLY)


# The newer emitters all the same, for what runs long and is compiled seldom.
BY_OPERATION: dict[str, Any] = {"xla_cpu_use_fusion_emitters": True} if PLAINLY else {}
jit_by_operation: Any = functools.partial(eqx.filter_jit, compiler_options=BY_OPERATION)


def compile_in_one() -> None:
    """Have XLA compile every program as one module (see IN_ONE). To be called before anything is computed."""
    said = os.environ.get("XLA_FLAGS", "")
    own = [f"--{name}={str(value).lower()}" for name, value in PLAINLY.items() if name not in said]
    os.environ["XLA_FLAGS"] = " ".join([said, *own]).strip()


def loops_are_functions() -> bool:
    return jax.default_backend() == "cpu" and LOOPS in os.environ.get("XLA_FLAGS", "")


def reads_back() -> bool:
    """Whether a loop that ends by its own numbers waits for them at every turn: on accelerators the host decides."""
    return jax.default_backend() != "cpu"


def by_itself(array: Any) -> Any:
    """The array, computed before whatever reads it. XLA's CPU compiler fuses the losses of all steps into what sums them up,
    and computes them again for each: scores of a bank of four layers took 1.1 to 2.9 times as long, of conjugate
    gradients 1.8 to 3.4 times (one core, three sizes of blocks)."""
    return jax.lax.optimization_barrier(array) if jax.default_backend() == "cpu" else array
