"""Try `more` on a model of your own, and pack one report to send back.

python run.py MODEL [--device cuda] [--data-root DIR] [--edits 20]

It needs `more-cli` on PATH (see README.md). Every step writes into work/; a second run does what is not done. The model
is never changed. report.zip has numbers and messages: no weights, no pictures, and no paths of this machine.

Exit codes: 0 all well, 3 a correction was not learnt, 1 a step failed, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import base64
import getpass
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORK, STEPS, MERGED = HERE / "work", HERE / "work" / "steps", HERE / "work" / "merged"
REPORT = HERE / "report.zip"
PACKAGES = ("more-vlm", "torch", "transformers", "safetensors", "accelerate", "vllm")
SCORES = (
    *("rel.gen_exact", "gen_text.gen_exact", "gen_image.gen_exact"),
    *("loc_text.loc_expkl_answer", "loc_image.loc_expkl_answer"),
)
ANSWERS = {"base": "right before", "transformers": "right in transformers", "vllm": "right in vLLM"}
"""The steps that ask every edit's question, and what their count is called."""
RESULT = (0, 3)
"""Exit codes of `more-cli` that leave a result: all well, or an edit was not learnt."""


@dataclass(frozen=True)
class Step:
    """One command."""

    name: str
    command: tuple[str, ...]
    skipped: str = ""
    """Why it is left out."""
    follows: bool = False
    """Whether it stands on the edits: it is done again after one before it that does."""

    @property
    def code_file(self) -> Path:
        """The file with its exit code and time, written when it has ended."""
        return STEPS / f"{self.name}.json"

    def ended(self) -> dict[str, Any] | None:
        """Return exit code and seconds of an earlier run; None if it has no result yet."""
        found = json.loads(self.code_file.read_text()) if self.code_file.exists() else None
        return found if found and found["code"] in RESULT and found["command"] == list(self.command) else None

    def forget(self) -> None:
        """Drop the result of an earlier run."""
        for path in (self.code_file, self.code_file.with_suffix(".out")):
            path.unlink(missing_ok=True)

    def run(self) -> dict[str, Any]:
        """Run it; its output is kept beside its exit code."""
        started = time.monotonic()
        with open(STEPS / f"{self.name}.out", "wb") as out, open(STEPS / f"{self.name}.err", "wb") as err:
            try:
                code = subprocess.run(self.command, stdout=out, stderr=err, cwd=HERE, check=False).returncode
            except OSError as error:
                err.write(f"{error}\n".encode())
                code = 127
        found = {"command": list(self.command), "code": code, "seconds": round(time.monotonic() - started, 1)}
        scratch = self.code_file.with_suffix(".part")
        scratch.write_text(json.dumps(found))
        scratch.replace(self.code_file)
        return found


def steps(options: argparse.Namespace) -> Iterator[Step]:
    """Yield the steps in order."""
    model, machine = str(options.model.resolve()), ("--device", options.device) if options.device else ()
    state = ("--state", str(WORK / f"kit-{options.edits}.more"))  # other edits, another state
    this = (sys.executable, str(Path(__file__).resolve()))
    number = ("--edits", str(options.edits), *machine)
    yield Step("status", ("more-cli", "status", model, "--estimate", "--json"))
    yield Step("base", (*this, "transformers", "--answers", model, *number))
    yield Step(
        "init", ("more-cli", "init", model, *state, "--anchors", "anchors.jsonl", *machine, "--json"), follows=True
    )
    edits = ("edits.jsonl", "--limit", str(options.edits))
    yield Step("edit", ("more-cli", "edit", model, *edits, *state, *machine, "--json"), follows=True)
    scored = ("--report", "work/report.html", "--json")
    yield Step("eval", ("more-cli", "eval", model, *state, *machine, *scored), follows=True)
    merged = ("-o", str(MERGED), "--force", "--sha256", "--json")
    yield Step("merge", ("more-cli", "merge", model, *state, *merged), follows=True)
    yield Step("verify", ("more-cli", "verify", str(MERGED), "--deep", "--json"), follows=True)
    asked = ("--answers", str(MERGED), *number)
    yield Step("transformers", (*this, "transformers", *asked), follows=True)
    missing = "" if importlib.util.find_spec("vllm") else "vLLM is not installed"
    yield Step("vllm", (*this, "vllm", *asked), missing, follows=True)
    data = ("--data-root", str(options.data_root.resolve())) if options.data_root else ()
    rows = ("--editor", "ft-m", "--editor", "more:paper", "--checkpoints", "1,10", "--json")
    why = "" if data else "give --data-root with the files of E-VQA and E-IC"
    yield Step("table-1", ("more-cli", "reproduce", "table-1", model, *data, *rows, *machine), why)


def lines(edits: int) -> list[dict[str, Any]]:
    """Return the first edits of the kit."""
    text = (HERE / "edits.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()[:edits]]


def with_transformers(checkpoint: Path, edits: int, device: str | None) -> Iterator[str]:
    """Yield the answer of a checkpoint to each edit's question, loaded as anybody would."""
    import torch
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = AutoProcessor.from_pretrained(checkpoint, trust_remote_code=False)
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype="auto", trust_remote_code=False)
    model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
    for edit in lines(edits):
        content = [{"type": "image"}, {"type": "text", "text": edit["question"]}]
        prompt = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, enable_thinking=False
        )
        picture = Image.open(HERE / edit["image"]).convert("RGB")
        # A chat template writes the token that begins a sequence, where the model has one.
        own = bool(processor.tokenizer.bos_token and prompt.startswith(processor.tokenizer.bos_token))
        inputs = processor(images=picture, text=prompt, return_tensors="pt", add_special_tokens=not own)
        inputs = inputs.to(model.device, dtype=model.dtype)
        with torch.inference_mode():
            ids = model.generate(**inputs, max_new_tokens=16, do_sample=False)
        yield processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def with_vllm(merged: Path, edits: int) -> Iterator[str]:
    """Yield the answer of the merged checkpoint to each edit's question, served by vLLM."""
    vllm = importlib.import_module("vllm")  # by its name: it is not among the packages that this is checked with
    model = vllm.LLM(model=str(merged), max_model_len=2048)
    for edit in lines(edits):
        picture = base64.b64encode((HERE / edit["image"]).read_bytes()).decode()
        content = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
            {"type": "text", "text": edit["question"]},
        ]
        chat = [{"role": "user", "content": content}]
        (answer,) = model.chat(chat, vllm.SamplingParams(temperature=0, max_tokens=16), add_special_tokens=True)
        yield answer.outputs[0].text.strip()


def environment() -> dict[str, Any]:
    """Return what the numbers were measured with."""
    found: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform(terse=True)}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    try:
        query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        found["gpus"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    except OSError:
        found["gpus"] = []
    return found


def summary(options: argparse.Namespace, ended: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers in short: what became of the steps, and which corrections hold where."""
    found: dict[str, Any] = {"environment": environment(), "edits": options.edits, "steps": ended}
    if (scores := output("eval")) is not None:
        found["scores"] = {
            name: round(scores["metrics"][name]["value"], 3) for name in SCORES if name in scores["metrics"]
        }
    targets = [edit["target"] for edit in lines(options.edits)]
    for step, name in ANSWERS.items():
        if (answers := output(step)) is not None:
            found[name] = sum(a == target for a, target in zip(answers, targets, strict=False))
    return found


def output(name: str) -> Any:
    """Return what a step printed as JSON; None if it has no result."""
    try:
        return json.loads((STEPS / f"{name}.out").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def scrubbed(text: str, model: Path) -> str:
    """Return text without paths, names of the user and of the machine."""
    hidden = {str(model.resolve()): "MODEL", str(model): "MODEL", str(HERE): "KIT", str(Path.home()): "HOME"}
    hidden |= {sys.prefix: "PYTHON", socket.gethostname(): "HOST", getpass.getuser(): "USER"}
    hidden.pop("root", None)  # names nobody
    for secret in sorted(hidden, key=len, reverse=True):
        if secret.strip("./"):  # a short name is also a part of words
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", hidden[secret], text)
    return text


def pack(found: dict[str, Any], model: Path) -> None:
    """Write the report, whole or not at all."""
    scratch = REPORT.with_suffix(".part")
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("summary.json", scrubbed(json.dumps(found, indent=1), model))
        for path in sorted(STEPS.iterdir()):
            if path.suffix in (".out", ".err", ".json"):
                packed.writestr(f"steps/{path.name}", scrubbed(path.read_text("utf-8", "replace"), model))
    scratch.replace(REPORT)


def all_steps(options: argparse.Namespace) -> int:
    """Run what is not done, say what became of it, and pack the report; return the exit code."""
    STEPS.mkdir(parents=True, exist_ok=True)
    ended, planned = dict[str, Any](), list(steps(options))
    for number, step in enumerate(planned, 1):
        if step.skipped:
            ended[step.name] = {"skipped": step.skipped}
            say(f"{step.name:14} skipped: {step.skipped}")
            continue
        found = step.ended()
        again = " (earlier)" if found else ""
        if step.follows and not found:
            for later in (other for other in planned[number:] if other.follows):
                later.forget()  # now, so that an interruption leaves no old result
        found = found or step.run()
        ended[step.name] = {name: found[name] for name in ("code", "seconds")}
        say(f"{step.name:14} {outcome(step, found['code'])} in {found['seconds']:,.0f} s{again}")
    found = summary(options, ended)
    pack(found, options.model)
    for name, value in found.get("scores", {}).items():
        say(f"{name:28} {value}")
    for name in ANSWERS.values():
        if name in found:
            say(f"{name:28} {found[name]} of {options.edits}")
    say(f"wrote {REPORT}: please look through it, then send it back")
    codes = [step.get("code", 0) for step in ended.values()]
    return 1 if any(code not in RESULT for code in codes) else max(codes)


def outcome(step: Step, code: int) -> str:
    """Return in words how a step ended."""
    words = {0: "done", 3: "done, but a correction was NOT learnt"}
    return words.get(code, f"FAILED, see work/steps/{step.name}.err")


def say(text: str) -> None:
    """Print a line; the steps go on if nobody reads it."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the end)


def main(arguments: list[str]) -> int:
    """Run all steps, or with `transformers` or `vllm` the one that this script is itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint folder")
    parser.add_argument("--device", help="such as cuda; by default what more-cli chooses")
    parser.add_argument("--data-root", type=Path, help="folder with the files of E-VQA and E-IC")
    most = len(lines(sys.maxsize))
    parser.add_argument("--edits", type=int, default=most, help=f"the first so many corrections, 1 to {most}")
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.answers is not None:
        named = str(options.model)
        answers = with_vllm(options.answers, options.edits) if named == "vllm" else None
        print(json.dumps(list(answers or with_transformers(options.answers, options.edits, options.device))))
        return 0
    if not 1 <= options.edits <= most:
        parser.error(f"--edits {options.edits}: the kit has {most} corrections")
    if not (options.model / "config.json").is_file():
        parser.error(f"{options.model} holds no config.json: name the folder of a checkpoint")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        return all_steps(options)
    except KeyboardInterrupt:
        say("stopped: run the same command again, and it does what is not done")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
