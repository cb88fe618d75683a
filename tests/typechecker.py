"""What checks annotations in the tests: as mypy does, a whole number is a float."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
