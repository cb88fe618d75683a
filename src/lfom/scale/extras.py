"""What the extra `cluster` installs, imported when it is first asked for."""

import importlib
from typing import Any

from lfom.core.checks import InputError


def extra(name: str, what: str) -> Any:
    """A module of it. what: asks for it, as the beginning of a sentence."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"{what} needs {name.partition('.')[0]}, which cannot be imported ({error}). Install it with "
            "pip install 'lfom[cluster]', or from a checkout with pip install '.[cluster]'."
        ) from None
