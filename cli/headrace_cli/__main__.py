"""`python -m headrace_cli` runs `headrace`."""

from headrace_cli.main import main

main()
