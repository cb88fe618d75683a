"""A user's own Python file, run because its path was given: classes for `lfom.load`, experiments for the report."""

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from lfom.core.checks import InputError


def module_of(path: str | Path) -> ModuleType:
    """Run the file and return it as a module. Nothing else in this library runs code from a file."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist: pass the path of a Python file.")
    if path.suffix != ".py" or not path.is_file():
        raise InputError(f"{path} is not a Python file: pass the path of a file that ends in .py.")
    name = f"lfom_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be imported: pass a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(
            f"{path} ends with {type(error).__name__}: {str(error).rstrip('.')}. Run it by itself first."
        ) from error
    return module


def classes_of(module: ModuleType) -> list[type]:
    """The classes with fields that are defined in this module and not imported into it."""
    own = [found for found in vars(module).values() if isinstance(found, type)]
    return [found for found in own if found.__module__ == module.__name__ and dataclasses.is_dataclass(found)]
