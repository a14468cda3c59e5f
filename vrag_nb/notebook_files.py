"""Notebooks as files: reading one, and what its `parameters` cell declares, nothing executed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat

from vrag_nb.paths import shown_path
from vrag_nb.profile_files import ProfileError

_PLAIN_TYPES: Mapping[str, Any] = {one.__name__: one for one in (bool, int, float, str, list, dict)}


def declared_parameters(notebook: Path) -> dict[str, Any]:
    """The names a notebook's `parameters` cell sets, and to what.

    Raises ProfileError naming the notebook when it cannot be read, has no such cell, or sets what is no literal.
    """
    values = {}
    for name, (_, value) in _declarations(notebook).items():
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, TypeError):
            raise ProfileError(
                f"{shown_path(notebook)}: parameter {name} is `{ast.unparse(value)}`: write the value itself there, "
                "a literal"
            ) from None
    return values


def declared_types(notebook: Path) -> dict[str, tuple[str, Any]]:
    """How the type of each parameter is written, and that type, Any where it is not plain. Raises as
    `declared_parameters`."""
    return {name: (ast.unparse(kind), _type(kind)) for name, (kind, _) in _declarations(notebook).items()}


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """A notebook. Raises ProfileError naming the file that is none."""
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError) as error:
        raise ProfileError(
            f"{shown_path(path)} cannot be read as a notebook ({' '.join(str(error).split())[:100]}): "
            "save it again, or take it back from git"
        ) from None


def _declarations(notebook: Path) -> dict[str, tuple[ast.expr, ast.expr]]:
    """The annotation and the value of each name that a notebook's `parameters` cell sets."""
    for cell in read_notebook(notebook).cells:
        if "parameters" not in cell.metadata.get("tags", []):
            continue
        try:
            body = ast.parse(cell.source).body
        except SyntaxError as error:
            raise ProfileError(
                f"{shown_path(notebook)}: the cell tagged `parameters`, line {error.lineno}: {error.msg}: "
                "every line there is `name: type = literal`"
            ) from None
        return {
            node.target.id: (node.annotation, node.value)
            for node in body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
        }
    raise ProfileError(f"{shown_path(notebook)} has no cell tagged `parameters`")


def _type(annotation: ast.expr) -> Any:
    """The type that an annotation of plain types, lists, dicts and `|` means, nothing evaluated; Any for others."""
    match annotation:
        case ast.Constant(value=None):
            return type(None)
        case ast.Name(id=name):
            return _PLAIN_TYPES.get(name, Any)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _type(left) | _type(right)
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return list[_type(item)]  # type: ignore[misc]
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, item])):
            return dict[_type(key), _type(item)]  # type: ignore[misc]
    return Any
