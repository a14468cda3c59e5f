"""Prompt templates: text files with one `{question}`, found by name in `prompts/` or by path.

A template is a file because released checkpoints are trained on a wording of their own: whoever runs one writes its
wording down, names the file, and changes no code. Only `{question}` is filled in; all other braces stay as they are.
"""

from __future__ import annotations

from pathlib import Path

PROMPT_FOLDER = Path(__file__).parent / "prompts"
_FIELD = "{question}"


def prompt_names() -> list[str]:
    """The names of the templates that come with the package."""
    return sorted(path.stem for path in PROMPT_FOLDER.glob("*.txt"))


def load_prompt(prompt: str | Path) -> str:
    """The text of a template, by name (`vrag`, `nano`, ...) or by path; one trailing newline is dropped.

    Raises FileNotFoundError that lists the names there are, and ValueError when the template lacks `{question}`.
    """
    named = PROMPT_FOLDER / f"{prompt}.txt"
    path = named if named.is_file() else Path(prompt)
    if not path.is_file():
        raise FileNotFoundError(f"no prompt {str(prompt)!r}: name one of {', '.join(prompt_names())}, or a file")
    template = path.read_text(encoding="utf-8").removesuffix("\n")
    if _FIELD not in template:
        raise ValueError(f"the prompt {path} has no {_FIELD}: put it where the question belongs")
    return template


def fill_prompt(template: str, question: str) -> str:
    """The template with the question filled in."""
    return template.replace(_FIELD, question)
