"""lfom.fit: train any model on any distribution, or on a fixed set of prompts.

Least squares is the default where the parameters are few. Full matrices are trained in two
phases: first A_l = a_l M with one matrix for all layers, which few prompts determine well, then
every A_l by itself, in steps that are kept only if fresh prompts confirm them (the second phase
alone overfits badly at depth, docs/mathematics.md 3). Training starts from the scale of a few
prompts; neither the covariance nor the optimum is used.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

from lfom.core import checks
from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.compiler import jit_draws
from lfom.core.kept import Keep, anew
from lfom.core.methods import Algorithm, a_method
from lfom.core.parameters import check_dimension, check_layers, check_numbers, leaves, replaced
from lfom.core.parameters import kinds as kinds_of
from lfom.core.runs import PerRun, by_run, common_runs, each_run
from lfom.core.states import VIEWS, cheapest
from lfom.core.vectors import Parameters, check_constants, from_vector, parameters, vector_of
from lfom.core.words import in_words
from lfom.training.adam import Adam
from lfom.training.least_squares import LeastSquares
from lfom.training.sources import check_data, sources
from lfom.training.state import Phase, Setting, State, Tick, Watch, check_history

NO_CLIP = 1e3  # gradients of the log of a loss are smaller
FROM_RANDOM = {  # what attention of any kind is trained with: docs/attention.md
    "joint": Adam(8_000, 250, 1, 0.03, NO_CLIP, "cosine", warmup=500, log=True, averaged=True),
    "tokens": Adam(8_000, 512, 1, 0.01, NO_CLIP, "cosine", warmup=500, log=True),
}
LEAST_SQUARES_UP_TO = 1_500  # parameters: beyond this J^T J is too large, and Adam is used


@dataclass(frozen=True)
class Fit:
    """Trained models, one per run and depth.

    >>> import jax
    >>> import lfom
    >>> data, key = lfom.LinearRegression([1.0, 0.5], context=8), jax.random.key(0)
    >>> model = lfom.memformer(2, 2, memory="none", key=key)
    >>> trained = lfom.fit(model, data, depths=[1, 2], key=key, optimiser=lfom.Adam(steps=10))
    >>> trained.runs, trained.model(depth=1).depth, trained.model().depth
    (1, 1, 2)
    """

    def __repr__(self) -> str:
        runs, passes = len(self.vectors), len(self.history)
        return (
            f"Fit({runs} run{'s' * (runs > 1)}, depths {list(self.depths)}, {passes} pass{'es' * (passes != 1)} in "
            f"{self.seconds:.1f} s, {in_words(self.template)})"
        )

    template: Any
    depths: tuple[int, ...]
    vectors: np.ndarray  # (runs, depths, all)
    history: tuple[dict[str, Any], ...]
    seconds: float

    def __check_init__(self) -> None:
        """Asked of one that comes from a file: do its parts fit together?"""
        wanted = (len(self.depths), vector_of(self.template).size)
        if self.vectors.ndim != 3 or self.vectors.shape[1:] != wanted or not self.vectors.size:
            raise InputError(f"its numbers have the shape {self.vectors.shape}, and need (runs, {wanted}).")
        _depths(self.template, self.depths)
        if not np.isfinite(self.vectors).all():
            raise InputError("its numbers are not all finite.")
        check_history(self.history)

    @property
    def runs(self) -> int:
        return self.vectors.shape[0]

    def model(self, run: int = 0, depth: int | None = None) -> Any:
        """The trained model of one run and depth."""
        checks.count("run", run, 0)
        if depth is not None:
            checks.count("depth", depth)
        if run >= self.runs:
            raise InputError(f"run is {run}: this fit has the runs 0 to {self.runs - 1}.")
        depth = self.depths[-1] if depth is None else depth
        if depth not in self.depths:
            raise InputError(f"depth is {depth}: this fit has the depths {list(self.depths)}.")
        vector = self.vectors[run, self.depths.index(depth)]
        return from_vector(self.template, vector).truncated(depth)

    def per_run(self, depth: int | None = None) -> PerRun:
        """The models of one depth for all runs, as `evaluate` takes them."""
        return PerRun([self.model(run, depth) for run in range(self.runs)])


def fit(
    model: Any,
    data: Any,
    *,
    key: Array,
    depths: Sequence[int] | None = None,
    train: Sequence[str] | Sequence[Sequence[str]] | None = None,
    optimiser: LeastSquares | Adam | Sequence[LeastSquares | Adam] | None = None,
    start: str = "data",
    watch: Watch | None = None,
    tick: Tick | None = None,
    resume: State | None = None,
    keep: Keep = anew,
) -> Fit:
    """Train `model` on `data`, for every run in it and every depth at once.

    model: one, from whose numbers every run begins, or one per run (a list, or PerRun).
    data: a Distribution, or prompts (a batch, or a Quadratic with prompts on its last axis); for
    several runs a list of these, or PerRun.
    depths: train the first L layers for each L; by default the whole model.
    train: the kinds of parameters that are free (A, B, coefficients, gates, or a kind of your own), the
    others stay as they are; a sequence of such lists trains one after the other (Appendix D: A, then
    Gamma). By default all are free.
    optimiser: LeastSquares or Adam, or several, each of which goes on where the one before it ended; by default
    least squares where the parameters are few. A model that only reads tokens is trained by Adam, with one
    query per prompt.
    start: "data" starts least squares from the scale of a few prompts, "model" from the model's
    own numbers. Adam always starts from the model.
    watch: called after every pass with the state and a record of it. tick: called inside a pass with
    the part of it that is done. resume: a state that watch was given. keep: a function of a name and of how
    something is made, such as `Workbench.keep`, by which fits on the same prompts share what they have in common (GD++ only).

    >>> import jax
    >>> from lfom import LinearRegression, fit, memformer
    >>> data = LinearRegression([1.0, 0.5], context=8)
    >>> trained = fit(memformer(2, 1, memory="none", key=jax.random.key(0)), data, key=jax.random.key(1))
    >>> trained.model().depth
    1
    """
    begun = time.perf_counter()
    models, given = _each(model), model
    model = models[0]
    checks.random_key("key", key)
    checks.function("watch", watch, "a function of a state and a record")
    checks.function("tick", tick, "a function of the part that is done")
    checks.function("keep", keep, "a function of a name and of how something is made")
    checks.instance("resume", resume, State | None, "a state that watch was given, or None")
    wanted = _depths(model, depths)
    check_data(model, data)
    _trained_kinds(train)
    runs = by_run(data)
    views = getattr(data if runs is None else runs.stacked, "views", VIEWS)
    if optimiser is None:
        optimiser = default_optimiser(model, _groups_of(train)[0], views)
    optimisers = _optimisers(optimiser)
    view = trained_view(model, views)
    for one in optimisers:
        one.check_view(view)
    check_layers(model, model.depth, 1, ())
    chunk, hold_out = min(one.chunk for one in optimisers), max(one.hold_out for one in optimisers)
    source = sources(_for_runs(data, given), chunk=chunk, hold_out=hold_out, view=view, kernel=model.kernel)
    check_dimension(model, source.dimension)
    phases = plan(model, train, optimiser, start, data)
    setting = Setting(source, wanted, model.depth, key, watch, tick, keep)
    state = resume
    if state is not None:
        _check_state(state, phases, (source.runs, len(wanted)))
    else:
        state = State(0, 0, 0, _initial(models, setting, optimisers[0], start, train))
    for index in range(state.phase, len(phases)):
        phase = phases[index]
        if phase.optimiser is not None:
            state = phase.optimiser.run(phase, setting, state)
        if index + 1 < len(phases):
            vectors = _convert(phase.parameters, phases[index + 1].parameters, state.vectors)
            state = State(index + 1, 0, 0, vectors, {}, state.history)
    return Fit(
        phases[-1].parameters.template, wanted, state.vectors, state.history, time.perf_counter() - begun
    )


def _check_state(state: State, phases: list[Phase], size: tuple[int, int]) -> None:
    """Whether a fit like this one can have been there. size: runs and depths."""
    check_history(state.history)
    if not 0 <= state.phase < len(phases):
        raise InputError(
            f"resume is in phase {state.phase}, and this fit has {len(phases)}: go on with the same `train`."
        )
    shape = (*size, vector_of(phases[state.phase].parameters.template).size)
    if np.shape(state.vectors) != shape:
        raise InputError(
            f"resume holds numbers of shape {np.shape(state.vectors)}, and this fit has {shape} (runs, depths, numbers): pass "
            "the model, depths and data that it comes from."
        )


def _each(model: Any) -> list[Algorithm]:
    """Without what is known of other numbers, as of a method that was learned."""
    found = [a_method("model", one).as_algorithm() for one in each_run(model)]
    for one in found:
        check_numbers("model", one)
    check_constants(found)
    return found


def _trained_kinds(train: Any) -> None:
    """Names, or lists of names."""
    wanted = "a kind of parameters or a list of kinds, such as ('A', 'coefficients')"
    checks.instance("train", train, str | list | tuple | set | frozenset | None, wanted)
    for stage in train if isinstance(train, list | tuple | set | frozenset) else ():
        for kind in stage if isinstance(stage, list | tuple | set | frozenset) else (stage,):
            checks.instance("train", kind, str, wanted)
    if train is not None and not train:
        raise InputError("train is empty: name what is trained, or leave it out for all.")


def _for_runs(data: Any, model: Any) -> Any:
    """The data of every run, where there is a model for each."""
    runs = common_runs(model=model, data=data)
    return [data] * runs if by_run(data) is None and runs > 1 else data


def _optimisers(optimiser: Any) -> list[LeastSquares | Adam]:
    """One, several, or the default of `plan`."""
    if optimiser is None:
        return [LeastSquares()]
    several = list(optimiser) if isinstance(optimiser, list | tuple) else [optimiser]
    wanted = "lfom.LeastSquares(...), lfom.Adam(...) or a list of these, or None"
    for one in several or [None]:
        checks.instance("optimiser", one, LeastSquares | Adam, wanted)
    return several


def plan(
    model: Algorithm,
    train: Any = None,
    optimiser: LeastSquares | Adam | Sequence[LeastSquares | Adam] | None = None,
    start: str = "data",
    data: Any = None,
) -> list[Phase]:
    """The phases of a fit."""
    model, runs = model.as_algorithm(), by_run(data)
    one_matrix_is_enough = getattr(data if runs is None else runs.stacked, "has_one_matrix", False)
    checks.known("start", start, ("data", "model"))
    phases: list[Phase] = []
    for number, one in enumerate(_optimisers(optimiser)):
        for kinds in _groups_of(train):
            own = kinds_of(model)
            name = (
                "all"
                if kinds is None or set(kinds) >= set(own)
                else " and ".join(k for k in kinds if k in own)
            )
            first = _begun(model, np.zeros(model.depth), train)
            narrower = bool(jax.tree.structure(first) != jax.tree.structure(model))  # type: ignore[operator]
            anew = number == 0 and one.begins_anew(start) and first is not model
            if narrower and anew and (kinds is None or "A" in kinds):
                phases.append(Phase(f"{name}, one matrix", parameters(first, kinds), one, anew=anew))
                frees = not one_matrix_is_enough if one.every_matrix is None else one.every_matrix
                every = parameters(model, kinds)
                phases.append(Phase(f"{name}, every matrix", every, one if frees else None, careful=True))
            else:
                phases.append(Phase(name, parameters(model, kinds), one, anew=anew))
    return phases


def _depths(model: Algorithm, depths: Sequence[int] | None) -> tuple[int, ...]:
    if depths is None:
        return (model.depth,)
    example = f"[{depths}]" if isinstance(depths, int) else "[1, 2]"
    kinds = list | tuple | set | range | np.ndarray
    checks.instance("depths", depths, kinds, f"a list of numbers of layers. Pass depths={example}")
    if not len(depths):
        raise InputError("depths is empty: name at least one depth.")
    for depth in depths:
        checks.count("depth", depth)
        if depth > model.depth:
            raise InputError(
                f"depth {depth} is more than the model's {model.depth} layers: build a deeper one."
            )
    return tuple(sorted(set(depths)))


def default_optimiser(
    model: Algorithm, train: Any = None, views: tuple[str, ...] = VIEWS
) -> LeastSquares | Adam:
    """Least squares where the parameters are few and the model runs on iterates or kernels, otherwise Adam: from the random
    numbers that attention with any P and Q begins with, least squares does not find its way."""
    view = trained_view(model, views)
    if view in FROM_RANDOM:
        return FROM_RANDOM[view]
    few = parameters(model, train).size <= LEAST_SQUARES_UP_TO
    return LeastSquares() if few else Adam(10_000, schedule="cosine")


def trained_view(model: Algorithm, views: tuple[str, ...] = VIEWS) -> str:
    """The cheapest view that the model has, of those that its prompts can be read in."""
    return cheapest("this model", model.views, views)


def _groups_of(train: Any) -> list[tuple[str, ...] | None]:
    """[kinds] or [kinds, kinds, ...] as a list of kinds; None for all."""
    if train is None:
        return [None]
    if isinstance(train, str):
        return [(train,)]
    items: list[Any] = list(train)
    if all(isinstance(item, str) for item in items):
        return [tuple(items)]
    return [(item,) if isinstance(item, str) else tuple(item) for item in items]


@jit_draws
def _jitter(key: Array, shape: tuple[int, ...]) -> Array:
    return jax.random.uniform(jax.random.fold_in(key, 7), shape)


def _initial(models: list[Algorithm], setting: Setting, optimiser: Any, start: str, train: Any) -> np.ndarray:
    """The starting vectors (runs, depths, all)."""
    runs, depths = setting.source.runs, len(setting.depths)
    if not optimiser.begins_anew(start):
        own = np.stack([vector_of(model) for model in models])[:, None]
        return np.broadcast_to(own, (runs, depths, own.shape[-1])).copy()
    size = setting.pilot.step
    jitter = np.asarray(_jitter(setting.key, (runs, setting.depth)))
    rows = []
    for run in range(runs):
        model = models[run % len(models)]
        for depth in setting.depths:
            scales = np.zeros(setting.depth)
            scales[:depth] = size[run] * model.first_steps(depth) * (1 + 0.05 * jitter[run, :depth])
            rows.append(vector_of(_begun(model, scales, train)))
    return np.stack(rows).reshape(runs, depths, -1)


def _begun(model: Algorithm, scales: np.ndarray, train: Any) -> Algorithm:
    """Where training begins: what is never trained stays as it is. The model itself, where that has no place there."""
    groups = _groups_of(train)
    frozen = {
        leaf.name: leaf.array
        for leaf in leaves(model)
        if not any(kinds is None or leaf.kind in kinds for kinds in groups)
    }
    begun = model.begin(as_array(scales.astype(np.float32)))
    known = leaves(begun)
    if not frozen.keys() <= {leaf.name for leaf in known}:
        return model
    return replaced(begun, [frozen.get(leaf.name, leaf.array) for leaf in known])


def _convert(before: Parameters, after: Parameters, vectors: np.ndarray) -> np.ndarray:
    """The same models in the next phase's parametrisation."""
    flat = vectors.reshape(-1, vectors.shape[-1])
    found = [vector_of(after.template.write(from_vector(before.template, vector))) for vector in flat]
    return np.stack(found).reshape(*vectors.shape[:-1], -1)
