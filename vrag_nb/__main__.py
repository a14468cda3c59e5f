"""The command line: `python -m vrag_nb COMMAND`, or what the Makefile calls.

    run nano                          the notebooks of a run, headless, into its results folder
    ask "What was revenue in 2019?"   one question, thoughts and actions as they come
    prep, index, serve                a corpus's page images, its index, the search engine over HTTP
    evaluate --documents DIR --questions FILE --out DIR     any folder of PDFs; unified questions, or SlideVQA's,
                                      ViDoSeek's or MMLongBench-Doc's own file; --corpus DIR for a prepared corpus
    report RESULTS ... --out DIR      evaluations as one page: tables, figures, failures; several seeds are averaged
    merge OUT --part NAME CORPUS QUESTIONS ...              several prepared corpora to one
    import-dataset SOURCE OUT         parquet files, or what `datasets` saved, to page images and questions
    realdocs DIR                      recall on a folder of MMLongBench-Doc

What a user got wrong is one line and exit code 2; a notebook that failed, or no answer, is one line and exit code 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from vrag_nb.commands import asking, corpus, gathering, measuring


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.function(options) or 0)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on where it was", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        return _say(error, 2)
    except RuntimeError as error:
        if type(error).__name__ == "FolderInUseError":
            return _say(error, 2)
        if type(error).__name__ != "RunError":
            raise
        print(f"vrag_nb: {error}", file=sys.stderr)  # a server's last words keep their lines
        return 1


def _say(error: Exception, code: int) -> int:
    words = " ".join(" ".join([str(error), *getattr(error, "__notes__", [])]).split()) or type(error).__name__
    print(f"vrag_nb: {words}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m vrag_nb", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for kind in (asking, corpus, measuring, gathering):
        kind.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
