"""`python -m headrace_cli` is `headrace`."""

from headrace_cli.main import main

main()
