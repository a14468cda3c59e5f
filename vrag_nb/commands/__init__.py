"""The commands of `python -m vrag_nb`, a file for each kind: what a command does beside the arguments it takes.

A command is a function of the parsed arguments; `add` of its file enters it. What it needs is imported when it runs, so
that `--help` and a misspelt argument are answered at once.
"""
