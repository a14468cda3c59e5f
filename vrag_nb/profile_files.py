"""How profiles and runs are read from a YAML file: its sections, what `extends` takes over, and what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from vrag_nb.paths import shown_path
from vrag_nb.profile_parts import AGENTS, agent_kind

_WHOLE = ("options", "sizes", "narrated", "experts")  # fields that `extends` replaces instead of merging
_OF_A_KIND: Mapping[str, tuple[str, ...]] = {  # what a part of another kind has no use for
    "retriever": ("checkpoint", "options"),
    "fused_with": ("checkpoint", "options"),
    "policy": ("options",),  # an endpoint may serve the same checkpoint
    "grounder": ("options",),
}


class ProfileError(ValueError):
    """A profile or run that is not there or does not fit; the text names file and field."""


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML's loader, which of a key that stands twice in a mapping would take the last value and say nothing."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping as it is written, before `<<` brings in keys that it may change. Raises YAMLError."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise yaml.YAMLError(f"line {line}: {key.value!r} stood in line {lines[name]} already: keep one")
            lines[name] = line
        return node


def read_section(path: Path, section: str) -> dict[str, Any]:
    """A top-level mapping of a YAML file. Raises ProfileError naming the file when it is not there or no mapping."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except FileNotFoundError:
        raise ProfileError(f"there is no file {shown_path(path)}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ProfileError(f"{shown_path(path)}, line {line}: this is no UTF-8: save the file as UTF-8") from None
    except (OSError, yaml.YAMLError) as error:
        raise ProfileError(f"{shown_path(path)} cannot be read as YAML: {' '.join(str(error).split())}") from None
    found = content.get(section) if isinstance(content, dict) else None
    if not isinstance(found, dict):
        raise ProfileError(f"{shown_path(path)}: field {section}: expected a mapping of names")
    return {str(name): fields for name, fields in found.items()}  # a year is a name, too


def first_problem(error: ValidationError) -> str:
    """A validation error's first problem in words: `field a.b: what is wrong`."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    if where[:1] == ["agent"] and where[1:2] and where[1] in AGENTS:
        del where[1]  # which kind of agent it was read as: no field of the file
    field = ".".join(where) or "(all)"
    return f"field {field}: {first['msg']}"


def resolved(name: str, profiles: Mapping[str, Any], path: Path, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """A profile's fields with those of the profiles it extends."""
    if name not in profiles:
        where = f"profile {above[-1]}, field extends: " if above else ""
        known = ", ".join(profiles)
        raise ProfileError(f"{shown_path(path)}: {where}there is no profile {name!r}; known: {known}")
    if name in above:
        raise ProfileError(f"{shown_path(path)}: profile {name}, field extends: profiles extend each other in a circle")
    if not isinstance(profiles[name], dict):
        raise ProfileError(f"{shown_path(path)}: profile {name}: expected a mapping of fields")
    fields = dict(profiles[name])
    parent = fields.pop("extends", None)
    return fields if parent is None else _merged(resolved(str(parent), profiles, path, (*above, name)), fields)


def _another_kind(base: Mapping[str, Any], changes: Any) -> bool:
    return isinstance(changes, dict) and changes.get("kind", base.get("kind")) != base.get("kind")


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`: mappings merged field by field, apart from those replaced as a whole.

    A retriever or policy of another kind is not given the options of the one before, nor a retriever its checkpoint.
    An agent of another kind is not evaluated as the systems of the one before.
    """
    merged = dict(base)
    if agent_kind(changes.get("agent", base.get("agent", {}))) != agent_kind(base.get("agent", {})):
        evaluation = merged.get("evaluation")
        if isinstance(evaluation, dict):
            merged["evaluation"] = {name: field for name, field in evaluation.items() if name != "systems"}
    for key, value in changes.items():
        if key in _OF_A_KIND and isinstance(merged.get(key), dict) and _another_kind(merged[key], value):
            merged[key] = {name: field for name, field in merged[key].items() if name not in _OF_A_KIND[key]}
        both = isinstance(value, dict) and isinstance(merged.get(key), dict) and key not in _WHOLE
        if both and key == "agent" and "kind" in value:  # another kind of agent knows other fields
            both = agent_kind(value) == agent_kind(merged[key])
        merged[key] = _merged(merged[key], value) if both else value
    return merged
