"""What an experiment is: ours, and those of a user's own file."""

import hashlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from lfom.experiments.workbench import TRAININGS, Outcome, Training, Workbench


class Experiment:
    """One figure of the report and what it settles: say what it is in a subclass, and write `run`.

    Texts: name (of its folder, and on the command line), title, section (of a paper, if it has one), shows,
    trained. x_label, y_label and x_scale ("linear" or "log") hold for every measure of its rows, or name one for
    each. alone: it measures time, so that nothing may run beside it.

    trainings: what its names of trainings stand for, each an optimiser, or a function (preset, model, d) that
    gives one. `run` finds those that it was asked for in `bench.trainings`: of "paper" and "converged" the ones
    that --training names, and all others.

    >>> import lfom
    >>> class Halves(lfom.Experiment):
    ...     name, title = "halves", "What halves with every step"
    ...     def run(self, bench):
    ...         return lfom.Outcome([lfom.Row("halves", "none", x, 2.0**-x) for x in range(3)], [])
    >>> [row.value for row in Halves().run(lfom.Workbench()).rows]  # lfom.reproduce(Halves()) draws it
    [1.0, 0.5, 0.25]
    """

    name: str = ""
    title: str = ""
    section: str = ""
    shows: str = ""
    trained: str = ""
    x_label: str | dict[str, str] = "layers or steps"
    y_label: str | dict[str, str] = "log of the mean squared error"
    x_scale: str | dict[str, str] = "linear"
    alone: bool = False
    trainings: Mapping[str, Training] = TRAININGS
    file: str = ""  # that it was found in, if it is a user's

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    @property
    def source(self) -> str:
        """What tells one version of a user's file from another; of ours the version of lfom does."""
        return hashlib.sha256(Path(self.file).read_bytes()).hexdigest()[:16] if self.file else "lfom"

    def run(self, bench: Workbench) -> Outcome:
        """Make data, train and score on the workbench, and return rows and claims."""
        raise NotImplementedError(f"{type(self).__name__} has no run(self, bench): write it.")


def experiments_in(module: ModuleType) -> list[Experiment]:
    """Every experiment of a module: objects, and the classes that it defines with a name and without arguments."""
    # Whatever a user's module holds: what is no experiment cannot say so.
    made = [one for one in vars(module).values() if isinstance(one, Experiment)]
    return [*made, *(kind() for kind in _classes_in(module) if kind.name and kind not in map(type, made))]


def nameless_in(module: ModuleType) -> list[str]:
    """Classes of a module that would be experiments if they had a name: others neither inherit from them nor make them."""
    things = list(vars(module).values())
    used = {base for one in things if isinstance(one, type) for base in one.__mro__[1:]}
    used |= set(map(type, things))
    return [kind.__name__ for kind in _classes_in(module) if not kind.name and kind not in used]


def _classes_in(module: ModuleType) -> list[type[Experiment]]:
    """Classes of experiments that a module defines, and that need no arguments."""
    # Whatever a user's module holds, as above.
    kinds = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Experiment)]
    own = [kind for kind in kinds if kind.__module__ == module.__name__]
    return [kind for kind in own if not inspect.signature(kind).parameters]
