"""`python -m twinpath`: the same as the `twinpath` command."""

from twinpath.cli.main import main

main()
