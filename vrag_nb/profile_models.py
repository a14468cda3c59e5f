"""The models of a profile: its checkpoints found, its embedder and policies made, what is wrong said by field.

A kind is one of the project's own or a class of somebody's, `module:Class`, which is given what the profile says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vrag_nb.loading import find_checkpoint, fingerprint_folder, load_object
from vrag_nb.paths import project_path
from vrag_nb.profile_files import ProfileError
from vrag_nb.profile_parts import POLICIES, PolicyPart, RetrieverPart
from vrag_nb.servers.addresses import with_addresses

if TYPE_CHECKING:  # torch and its friends take seconds to import: they wait until a model is asked for
    from vrag_nb.agent.policy import Policy
    from vrag_nb.retrieval.embedders import Embedder


def embedder_of(profile: str, part: RetrieverPart) -> Embedder:
    """The embedder of a retriever. Raises ProfileError when its checkpoint is not there or does not fit."""
    from vrag_nb.retrieval.embedders import load_embedder

    checkpoint = part.checkpoint
    if checkpoint:
        own = ":" in part.kind
        checkpoint = _place_of_own(checkpoint) if own else checkpoint_of(profile, "retriever", checkpoint)
    try:
        return load_embedder(part.kind, checkpoint, **part.options)
    except (ValueError, FileNotFoundError, TypeError, AttributeError) as error:
        raise ProfileError(f"profile {profile}, field retriever: {error}") from error


def policy_of(profile: str, field: str, part: PolicyPart, factor: int) -> Policy:
    """The policy that a field describes, for an agent with this `factor`.

    Raises ProfileError when a checkpoint, key or server is not there, an option is unknown, or the factor is not the
    model's.
    """
    from vrag_nb.agent.policy import Policy, weights_identity

    checkpoint = part.checkpoint
    if part.kind not in POLICIES:
        checkpoint = _place_of_own(checkpoint)
    elif part.kind != "openai":  # an endpoint's model is a name, never a folder
        checkpoint = checkpoint_of(profile, field, checkpoint)
    try:
        cls = load_object(POLICIES.get(part.kind, part.kind), "policy")
    except ValueError as error:
        raise ProfileError(f"profile {profile}, field {field}.kind: {error}") from error
    try:
        policy = cls(checkpoint, **with_addresses(part.options), **_named_address(part))
    except TypeError as error:
        raise ProfileError(f"profile {profile}, field {field}.options: {error}") from error
    except AttributeError as error:  # of a checkpoint of another kind, or a dtype that torch does not have
        raise ProfileError(f"profile {profile}, field {field}: {error}") from error
    except (ValueError, OSError, ImportError) as error:
        raise ProfileError(f"profile {profile}, field {field}: {str(error).splitlines()[0]}") from error
    if part.kind not in POLICIES and not isinstance(policy, Policy):
        what = f"{part.kind!r} is no subclass of {Policy.__module__}.Policy"
        raise ProfileError(f"profile {profile}, field {field}.kind: {what}")
    _check_factor(profile, policy, factor)
    if part.kind not in POLICIES:
        policy.declared = {**part.model_dump(mode="json"), **weights_identity(checkpoint)}
    return policy


def checkpoint_of(profile: str, field: str, checkpoint: str) -> str:
    """The checkpoint's folder, or a hub id as it is. Raises ProfileError for a folder that is not there."""
    try:
        return str(find_checkpoint(checkpoint) or checkpoint)
    except FileNotFoundError as error:
        raise ProfileError(f"profile {profile}, field {field}.checkpoint: {error}") from None


def _check_factor(profile: str, policy: Policy, factor: int) -> None:
    from vrag_nb.agent.policy import check_factor

    try:
        check_factor(policy, factor)
    except ValueError as error:
        policy.close()
        raise ProfileError(f"profile {profile}, field agent.factor: {error}") from error


def _place_of_own(checkpoint: str) -> str:
    """The checkpoint of a class of somebody's own: a file or folder of the repository by its path, and any other as it
    is, since what the class makes of a name is its affair."""
    place = project_path(checkpoint)
    return str(place) if place.exists() else checkpoint


def _named_address(part: PolicyPart) -> dict[str, str]:
    """Of an endpoint that a run starts: what is asked there, whatever its port. A folder that it serves counts by its
    weights."""
    address = part.options.get("base_url")
    if part.kind != "openai" or not isinstance(address, str) or with_addresses(address) == address:
        return {}
    folder = project_path(part.checkpoint)
    return {"address": f"{address} {fingerprint_folder(folder)}" if folder.is_dir() else address}
