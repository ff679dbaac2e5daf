"""Signatures by `ssh-keygen -Y`, which is part of OpenSSH and signs for git too: there is no cryptography here."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from more_cli.errors import StateError, UsageError
from more_cli.text import quoted

NAMESPACE: Final = "more-ledger@1"
"""What a signature is for: one that a key made for git or for a file does not count."""
_KEY = re.compile(r"key (SHA256:\S+)")
_TOO_OPEN = re.compile(r"Permissions (\d+) for .* are too open")


class Missing(UsageError):
    """This machine has no `ssh-keygen`."""


class Signer(NamedTuple):
    """Whose key made a signature."""

    key: str
    """Fingerprint of the key, `SHA256:...`."""
    name: str | None = None
    """What the file of signers calls the key; None where it was not asked."""

    def __str__(self) -> str:
        return f"{self.name} ({self.key})" if self.name else self.key


def require(signers: Path) -> None:
    """Check that signatures can be compared with a file of signers.

    Raises:
        UsageError: there is no such file.
        Missing: there is no `ssh-keygen`.
    """
    if signers.exists() and not signers.is_file():  # it is read more than once
        raise UsageError(f"`{signers}` is not a regular file", "save the signers to a file first")
    if not signers.exists():
        raise UsageError(f"no file `{signers}`", f"it has a line for each signer: NAME {_ONLY} ssh-ed25519 AAAA...")
    _program()


_ONLY = f'namespaces="{NAMESPACE}"'


def sign(data: bytes, key: Path) -> bytes:
    """Return the signature of a private key, or of a public one whose private key the ssh-agent holds.

    Raises:
        UsageError: the key cannot be used.
        Missing: there is no `ssh-keygen`.
    """
    done = _run("sign", "-f", str(key), "-n", NAMESPACE, data=data)
    if done.returncode:
        reason, hint = _reason(done), "`ssh-keygen -t ed25519 -f KEY` makes a new one"
        if not key.exists():
            raise UsageError(f"no file `{key}`", hint)
        if "load public key" in reason:  # what ssh-keygen says of any file that is not a key
            raise UsageError(f"`{key}` is not an SSH key", hint)
        if found := _TOO_OPEN.search(_text(done.stderr)):
            private = _private(key)
            hint = f"keep it to yourself: chmod 600 {quoted(private)}"
            raise UsageError(f"`{private}` cannot sign: its mode, {found[1]}, lets other users read it", hint)
        if "passphrase" in reason:
            hint = f"the ssh-agent can: type ssh-add {quoted(key)}, then pass its public key, {key}.pub"
        raise UsageError(f"`{key}` cannot sign: {reason}", hint)
    return done.stdout


def signer_of(data: bytes, signature: bytes, signers: Path | None) -> Signer:
    """Return who signed; with a file of `signers`, only one of them.

    Raises:
        StateError: the signature is not one of this data, or not of one of the signers.
        Missing: there is no `ssh-keygen`.
    """
    with _file(signature) as path:
        done = _run("check-novalidate", "-n", NAMESPACE, "-s", path, data=data)
        found = _KEY.search(_text(done.stdout))
        if done.returncode or not found:
            what = f"the signature does not match what it signs: {_reason(done)}"
            raise StateError(what, "restore it from a backup or, if it is sound, sign it again")
        signer = Signer(found[1])
        if signers is None:
            return signer
        names = _text(_run("find-principals", "-f", str(signers), "-s", path).stdout).splitlines()
        for name in names:
            known = "-f", str(signers), "-I", name, "-n", NAMESPACE, "-s", path
            if _run("verify", *known, data=data).returncode == 0:
                return signer._replace(name=name)
    hint = f"if you trust that key, add its line to the file: NAME {_ONLY} and the public key"
    raise StateError(f"signed by {signer}, whom `{signers}` does not name", hint)


def _program() -> str:
    if program := shutil.which("ssh-keygen"):
        return program
    raise Missing("signatures need `ssh-keygen`", "install OpenSSH 8.2 or later (apt-get install openssh-client)")


def _run(task: str, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    # It asks for a passphrase on the terminal itself, not on standard input.
    return subprocess.run([_program(), "-Y", task, *arguments], input=data, capture_output=True, check=False)


def _private(key: Path) -> Path:
    """Return the file of the private key where the public one was named."""
    private = key.with_suffix("") if key.suffix == ".pub" else key
    return private if private.exists() else key


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace")


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the last line that it said, which is the reason."""
    return (_text(done.stderr).splitlines() or ["ssh-keygen does not say why"])[-1]


@contextmanager
def _file(data: bytes) -> Iterator[str]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "signature")
        path.write_bytes(data)
        yield str(path)
