"""What `more merge`, `export`, `push` and `convert` print of the files that they wrote, and their `more.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from more_cli.outputs.base import LEFT_OUT, FilePath, Number, Part, Printed
from more_cli.outputs.scores import FailedEdit, HubPin

if TYPE_CHECKING:
    from more_cli.ops.merge import MergeReport


class _Fold(Part):
    site: str
    """name of the site"""
    disk_key: str
    """name of its weight in the shards"""
    dtype: str | None
    """type of the weight; like the next two `null` with `--dry-run`, which reads no weights"""
    changed: Number | None
    """part of its numbers that changed"""
    realised: Number | None
    """part of the update that rounding kept; 1 is all"""


class _Verification(Part):
    edits: int
    """edits checked"""
    lost: list[str]
    """ids of edits that only the live state answers right"""
    gained: list[str]
    """ids of edits that only the merged checkpoint answers right"""
    largest_logit_gap: Number
    """largest difference of a logit"""


class MergeOutput(Printed, schema="more.merge/1", command="more merge [MODEL] -o OUT --json"):
    """The edited checkpoint."""

    out: FilePath
    """folder of the edited checkpoint"""
    edits: int
    """edits folded in"""
    asked: int
    failed: list[FailedEdit]
    replayed: int
    bytes: int
    """bytes written"""
    linked: list[str]
    """shards that are hard links to the base's, with `--link`"""
    left_out: list[str]
    """files of the base that hold other copies of its weights, now outdated, and were not copied"""
    folds: list[_Fold]
    verification: _Verification | None
    """with `--verify` or `--into`: live state and merged checkpoint compared"""
    not_held: list[str]
    """ids of edits that neither of them answers right"""
    dry_run: bool
    """whether nothing was written because of `--dry-run`"""

    @classmethod
    def of_report(cls, report: MergeReport) -> MergeOutput:
        """Make it of the report of a merge."""
        if report.dry_run:
            folds = [_Fold.of(fold, dtype=None, changed=None, realised=None) for fold in report.folds]
        else:
            folds = [_Fold.of(fold, changed=fold.changed / max(fold.entries, 1)) for fold in report.folds]
        files = report.files
        return cls.of(report, bytes=files.size, linked=files.linked, left_out=files.left_out, folds=folds)


class ExportOutput(Printed, schema="more.export/1", command="more export [MODEL] -o OUT --json"):
    """The adapter, or the deltas."""

    out: FilePath
    """folder of the adapter, or file of the deltas"""
    format: str
    """`peft` or `delta`"""
    edits: int
    """edits in it"""
    asked: int
    failed: list[FailedEdit]
    replayed: int
    modules: list[str]
    """modules with an update"""
    kept: dict[str, Number]
    """with `--rank`: by module, the part of its update that the rank keeps"""


class Source(Part):
    """What is needed to get the same numbers again from a state."""

    base: dict[str, str]
    """SHA-256 of config, shard headers, tokenizer, templates and of every site's tensor in the base, by name"""
    recipe: dict[str, Any]
    """the recipe in full, see [Recipes](recipes.md)"""
    anchors: str | None
    """SHA-256 of the state's anchors"""
    edits: int
    """ledger lines that are in the state"""
    digest: str
    """SHA-256 over the edits in order"""
    ledger_head: str
    """SHA-256 of the ledger's last line"""
    versions: dict[str, str]
    """versions of `more` and its libraries, device, dtype, attention kernel and threads"""


class _WrittenFold(Part, like=_Fold):
    site: str
    disk_key: str
    realised: Number
    """part of the update that rounding kept"""
    sha256: str
    """SHA-256 of the tensor that was written"""


class _Carried(Part):
    statement: str
    """the statement, byte for byte"""
    signature: str
    """its signature, as `ssh-keygen -Y verify` takes it"""


class ProvenanceFile(
    Source,
    Printed,
    schema="more.provenance/1",
    command="more.json in a merged checkpoint or an adapter, or metadata of a file of deltas",
):
    """Where merged weights, an adapter or deltas come from."""

    asked: int
    failed: list[FailedEdit]
    statuses: dict[str, int]
    """edits by status"""
    previous: str | None
    """SHA-256 of the `more.json` of the base, if it was itself written by `more`"""
    hub: HubPin = LEFT_OUT
    """of a base from the hub's cache: which commit it is"""
    signed: _Carried = LEFT_OUT
    """of a signed state: its statement and signature; the ledger may have grown since"""
    folds: list[_WrittenFold] = LEFT_OUT
    """merge only: the weights that changed"""
    linked: list[str] = LEFT_OUT
    """merge only: shards that are hard links to the base's"""
    files: dict[str, str]
    """SHA-256 of files that were written; of shards with `--sha256`"""
    names: list[str] = LEFT_OUT
    """all files that were written, but for deltas: `--force` replaces a folder that holds nothing else"""


class PushOutput(Printed, schema="more.push/1", command="more push PATH REPO_ID --json"):
    """What was published on the hub."""

    path: FilePath
    """the folder or state"""
    repo: str
    """id of the repository"""
    private: bool
    """whether a new repository is private"""
    revision: str
    """the branch"""
    files: list[str]
    """names in the repository"""
    bytes: int
    """size of all files"""
    commit: str | None
    """hash of the commit; `null` with `--dry-run`"""
    url: str | None
    """address of the commit; `null` with `--dry-run`"""
    dry_run: bool
    """whether nothing was published because of `--dry-run`"""


class ConvertOutput(Printed, schema="more.convert/1", command="more convert IN -o FILE --json"):
    """The edit lines that were written."""

    source: FilePath
    """the file that was read"""
    form: str
    """what it is: `CSV`, `Parquet`, `LLaVA conversations`, `chat messages`, `a Label Studio export` or `JSON rows`"""
    out: FilePath
    """the file that was written"""
    rows: int
    """rows, conversations or tasks that were read"""
    edits: int
    """lines written; a repeated correction is written once"""
    skipped: int
    """rows left out because of a problem (`--skip-bad`)"""
    problems: list[str]
    """each problem with its file, row, field, and what to do"""
    tagged: list[str]
    """columns that are kept in `tags`"""
