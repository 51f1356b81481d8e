"""The `headrace` command: a table of lazily imported subcommands."""
