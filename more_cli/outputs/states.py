"""What `more init`, `status`, `verify`, `anchors` and `gc` print of a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from more_cli.outputs.base import LEFT_OUT, FilePath, Number, Part, Printed
from more_cli.outputs.log import StoredTurn
from more_cli.outputs.scores import Drift, FailedEdit, HubPin
from more_cli.store.state import SiteRecord

if TYPE_CHECKING:
    from more_cli.ops.init import InitReport
    from more_cli.ops.sign import SignReport
    from more_cli.ops.status import StatusReport


class Site(Part, like=SiteRecord):
    """One editable weight."""

    name: str
    group: str
    modality: str
    module: str
    disk_key: str
    shape: list[int]
    dtype: str = LEFT_OUT
    """type of the weight on disk; by `init`, and by `status` without a state"""
    rank: int = LEFT_OUT
    """rows of the basis A; this and the following by `status` of a state"""
    scale: Number = LEFT_OUT
    seed: int = LEFT_OUT
    basis_version: int = LEFT_OUT
    basis_fingerprint: list[Number] = LEFT_OUT
    ridge: Number | None = LEFT_OUT
    keys: int = LEFT_OUT
    energy: Number = LEFT_OUT


class Refusal(Part):
    """A module that cannot be edited."""

    module: str
    """path of the module in memory"""
    reason: str
    """why it cannot be edited"""


class _Tried(Part):
    setting: dict[str, Any] | list[str]
    """what was changed"""
    score: Number | None
    """mean score of the setting; `null` where it cannot be used"""
    reason: str = LEFT_OUT
    """of a suite: why it cannot be used; empty otherwise"""


class Calibration(Part):
    """What `--calibrate` tried and chose."""

    rule: str
    """how a setting is chosen"""
    edits: str
    """SHA-256 of the edits"""
    n: int
    """number of edits"""
    tried: list[_Tried]
    chosen: list[str] = LEFT_OUT
    """of a suite: the best setting"""
    at_edge: list[str] = LEFT_OUT
    """of a suite: constants of it that are the smallest or the largest value tried"""


class InitOutput(Printed, schema="more.init/1", command="more init MODEL --json"):
    """The state that was made, or that there was."""

    state: FilePath
    created: bool
    """whether this command wrote the state"""
    edits: int
    """ledger lines in the state: edits, further tries, consolidations, sets of anchors"""
    anchors: int
    """anchors that the state was made with"""
    pictured: int
    """of these, about a picture"""
    calibration: Calibration | None
    """with `--calibrate`: what was tried and chosen"""
    parameters: int
    """numbers in B, P and a stored A together"""
    recipe: dict[str, Any]
    """the recipe in full"""
    sites: list[Site]
    """weights that will be edited"""
    refusals: list[Refusal]
    """modules that cannot be edited"""
    notices: list[str]
    """what differs from the recipe or was left out, such as a capped rank"""

    @classmethod
    def of_report(cls, report: InitReport) -> InitOutput:
        """Make it of the report of `init`."""
        state, plan = report.state, report.plan
        return cls.of(
            report,
            state=report.target.sidecar,
            edits=state.edits,
            calibration=state.calibration,
            recipe=state.recipe.canonical(),
            sites=plan.sites,
            refusals=plan.refusals,
            notices=[*plan.notices, *filter(None, [plan.capped])],
        )


class _Estimate(Part):
    parts: dict[str, int]
    """bytes by part"""
    total: int
    """their sum"""
    free: int | None
    """bytes that are free there, if known"""
    samples: int
    """samples of one write that it assumes"""
    tokens: int
    """tokens of a sample that it assumes"""
    state: int
    """bytes of the state on disk"""


class _Signature(Part):
    name: str | None
    """name of the signer in the file of `--signers`; `null` without it"""
    key: str
    """fingerprint of the key, `SHA256:...`"""
    lines: int
    """lines of the ledger that it covers"""
    total: int
    """lines that there are"""


class InForce(Part):
    """A setting and where it comes from."""

    key: str
    """key of `more.toml`"""
    value: str | list[str] | None
    """its value; `null` for what is chosen later, such as the recipe by the architecture"""
    origin: str
    """`flag`, `environment`, `file`, `switch` or `default`"""
    place: str
    """the option, the variable, or the file with the line; empty for a default"""


class SettingsOutput(Printed, schema="more.settings/1", command="more status [MODEL] --settings --json"):
    """Every setting in force: from an option, the environment, `more.toml`, `more switch` or a default."""

    settings: list[InForce]
    """one object per key of `more.toml`"""


class StatusOutput(Printed, schema="more.status/1", command="more status [MODEL] --json"):
    """A state or, if there is none, what `init` would choose."""

    model: FilePath
    state: FilePath | None
    """path of the state; `null` where there is none yet"""
    name: str | None
    """name of the state; `null` for one that does not lie beside its checkpoint"""
    current: str
    """name of the state that commands use if none is named; its path where it does not lie beside the checkpoint"""
    hub: HubPin | None
    """the commit on the hub that the base is; `null` for any other folder"""
    edits: int
    """ledger lines in the state: edits, further tries, consolidations, sets of anchors"""
    behind: int
    """ledger lines that the state does not have yet"""
    statuses: dict[str, int]
    """edits by status"""
    asked: int
    failed: list[FailedEdit]
    anchors: int
    """anchors that writes hold or watch"""
    pictured: int
    """of these, about a picture"""
    made: int
    """of these, brought by edits and made of their pictures"""
    drift: Drift | None
    """how far the watched anchors have moved; `null` without any"""
    recipe: dict[str, Any]
    """the recipe in full"""
    extensions: list[str]
    """what the recipe does beyond the paper"""
    sites: list[Site]
    """weights that are edited"""
    refusals: list[Refusal]
    """modules that cannot be edited"""
    key_method: str | None
    """without a state: how names on disk were matched with modules"""
    sidecar_bytes: int
    """size of the state"""
    ledger_bytes: int
    """size of the folder of ledger and images, snapshots included"""
    snapshot_bytes: int
    """size of the snapshots in it, which `more gc` removes"""
    signed: _Signature | None
    """who signed the state; `null` where nobody did, or where the signature does not count"""
    unsigned: str
    """why it counts as not signed; empty if it is"""
    estimate: _Estimate | None
    """with `--estimate`: memory of an edit"""

    @classmethod
    def of_report(cls, report: StatusReport) -> StatusOutput:
        """Make it of the report of `status`."""
        state, plan, memory, found = report.state, report.plan, report.estimate, report.signature
        signed = None if isinstance(found, str) else found
        return cls.of(
            report,
            model=report.target.model,
            state=report.target.sidecar if state else None,
            hub=report.pin,
            edits=state.edits if state else 0,
            anchors=report.held.total,
            pictured=report.held.pictured,
            made=report.held.made,
            drift=Drift.of_drift(report.drift),
            recipe=report.recipe.canonical(),
            sites=plan.sites if plan else report.records,
            refusals=plan.refusals if plan else [],
            key_method=plan.key_method if plan else None,
            sidecar_bytes=report.disk.sidecar,
            ledger_bytes=report.disk.folder,
            snapshot_bytes=report.disk.snapshots,
            behind=report.disk.behind,
            unsigned=found if isinstance(found, str) else "",
            signed=signed and _Signature.of(signed, **signed.signer._asdict()),
            estimate=memory and _Estimate.of(memory, parts={part.name: part.bytes for part in memory.parts}),
        )


class _Check(Part):
    name: str
    """name of the check"""
    verdict: str
    """`ok`, `FAILED` or `skipped`"""
    detail: str
    """what was checked, or what is wrong"""
    hint: str
    """what to do; may be empty"""


class VerifyOutput(Printed, schema="more.verify/1", command="more verify [MODEL] --json"):
    """Every check and its verdict."""

    subject: FilePath
    """state or folder that was checked"""
    ok: bool
    """whether every check passed; false too where memory was too short for one"""
    deep: bool
    """whether `--deep` was given"""
    checks: list[_Check]


class _SignedPart(Part):
    subject: FilePath
    """the state, or the folder that merge or export wrote"""
    statement: FilePath
    """the in-toto statement, which is what was signed"""
    signature: FilePath
    """its signature, as `ssh-keygen -Y verify` takes it"""
    files: int
    """files that the statement names"""
    lines: int | None
    """lines of the ledger; `null` of a folder"""


class SignOutput(Printed, schema="more.sign/1", command="more sign [MODEL] --key KEY --json"):
    """What was signed."""

    key: str
    """fingerprint of the key, `SHA256:...`"""
    signed: list[_SignedPart]

    @classmethod
    def of_reports(cls, reports: Sequence[SignReport]) -> SignOutput:
        """Make it of the reports of `sign`."""
        return cls(key=reports[0].signer.key, signed=[_SignedPart.of(report) for report in reports])


class AnchorsOutput(Printed, schema="more.anchors/1", command="more anchors add MODEL FILE --json"):
    """How many anchors a state holds now."""

    state: FilePath
    added: int
    """anchors added"""
    repeated: int
    """lines that the state held already"""
    anchors: int
    """anchors that later writes hold"""
    replayed: int


class Anchor(Part):
    """A question whose answer must not change."""

    question: str
    """the question"""
    answer: str | None
    """its answer; `null` for the base's own"""
    image: str | None
    """SHA-256 of its image, if it has one"""
    images: list[str]
    """those of its images in order, if it has several"""
    turns: list[StoredTurn]
    """earlier turns of the conversation"""
    corrected_by: str | None
    """id of the edit that corrects its answer: the anchor is held no longer"""


class AnchorsListOutput(Printed, schema="more.anchors.list/1", command="more anchors list [MODEL] --json"):
    """The anchors of a state."""

    state: FilePath
    anchors: list[Anchor]
    """its anchors, also those that are held no longer"""


class GcOutput(Printed, schema="more.gc/1", command="more gc [MODEL] --json"):
    """The files that a state no longer needs."""

    state: FilePath
    files: dict[str, int]
    """sizes of the removed files in bytes"""
    bytes: int
    """bytes freed"""
    dry_run: bool
    """whether nothing was removed because of `--dry-run`"""
