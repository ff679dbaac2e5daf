"""Downloads of checkpoints from the hub, for `--fetch`, and the hub's errors in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from more_cli.checkpoint.hub import pin_of
from more_cli.errors import HubError
from more_cli.store.names import file_of
from more_cli.store.pin import read_pin
from more_cli.store.target import Target

FETCHED = ("*.safetensors", "*.json", "*.txt", "*.jinja", "*.model", "*.tiktoken", "README.md", "LICENSE*")
"""Weights, configurations, tokenizer files and the card: no pickle and no code."""
LEFT_OUT = ("*/*.safetensors", "*/*.json", "*/*.txt", "*/*.model", "*/README.md", "consolidated*")
"""Of these, what lies in folders of its own or holds the weights once more: transformers does not read it."""
LOGIN = "log in: hf auth login"


def fetch(repo: str, revision: str | None, state: Path | None) -> Target:
    """Download a checkpoint into the hub's cache, or find it there; return it with its state.

    A state that exists decides the commit: the one it was made from. Without `state` it is `NAME.more` in the current
    folder.

    Raises:
        HubError: no such model or revision, no access, no network, or the state was made from another commit.
    """
    name = repo.rpartition("/")[2]
    sidecar = file_of(Path(name), state) if state else Path(f"{name}.more")
    pin = read_pin(Target(Path(), sidecar).folder) if sidecar.is_file() else None
    if pin is not None and pin.repo != repo:
        raise HubError(f"`{sidecar}` was made from {pin}, not from {repo}", f"name {pin.repo}, or another --state FILE")
    from huggingface_hub import snapshot_download

    wanted = revision or (pin.commit if pin else None)
    with hub_errors(repo, wanted):
        found = snapshot_download(repo, revision=wanted, allow_patterns=[*FETCHED], ignore_patterns=[*LEFT_OUT])
    folder = Path(found)
    if pin is not None and pin_of(folder) != pin:
        hint = "leave --revision out, or start a new state with --state FILE"
        raise HubError(f"`{sidecar}` was made from {pin}, not from {pin_of(folder) or folder}", hint)
    return Target(folder, sidecar)


@contextmanager
def hub_errors(repo: str, revision: str | None = None) -> Iterator[None]:
    """Turn the errors of the hub's library into one line with a hint.

    Raises:
        HubError: whatever went wrong.
    """
    from huggingface_hub import errors
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(f"{repo} is gated, and you have no access", f"ask for it: {ENDPOINT}/{repo}; {LOGIN}") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(f"the hub has no {repo}, or it is private", f"check the name, or {LOGIN}") from error
    except errors.RevisionNotFoundError as error:
        hint = "name a branch, a tag or a commit with --revision"
        raise HubError(f"{repo} has no revision `{revision or 'main'}`", hint) from error
    except errors.HFValidationError as error:
        raise HubError(f"`{repo}` is no id on the hub", "write it as OWNER/NAME") from error
    except errors.HfHubHTTPError as error:
        code = error.response.status_code if error.response is not None else 0
        hint = f"{LOGIN}, with a token that may do this" if code in (401, 403) else "try again later"
        raise HubError(f"the hub refused {repo}: status {code}", hint) from error
    except (errors.LocalEntryNotFoundError, ConnectionError, _network_error()) as error:
        if HF_HUB_OFFLINE:
            what = "HF_HUB_OFFLINE is set, and it is not in the cache"
            raise HubError(f"{repo}: {what}", "unset HF_HUB_OFFLINE") from error
        raise HubError(f"{repo}: {ENDPOINT} cannot be reached", "check the network and HF_ENDPOINT") from error


def _network_error() -> type[Exception]:
    """Return what the library's HTTP client raises, whichever client that is: its own error is one of these."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))
