"""python -m lfom: the command line, also from a source folder."""

from lfom.cli import main

main()
