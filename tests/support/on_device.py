"""Runs the commands on a tiny LLaVA that lies on another device as a whole, and prints how each one ended.

python tests/support/on_device.py FOLDER DEVICE     # for `test_devices`, in a process of its own
"""

import json
import sys
from pathlib import Path

import torch

from support.elsewhere import set_up
from support.helpers import World, run

SETTINGS = ("--set", "max_steps=4")
COMMANDS = {
    "init": ("MODEL", *SETTINGS, "--set", "compact=2"),
    "edit": ("MODEL", "FOLDER/edits.jsonl"),
    "edit together": ("MODEL", "FOLDER/edits.jsonl", "--batch", *SETTINGS, "--state", "FOLDER/batch.more"),
    "edit as printed": ("MODEL", "FOLDER/edits.jsonl", "--recipe", "paper-literal", "--state", "FOLDER/printed.more"),
    "edit again": ("MODEL", "--retry"),
    "ask": ("MODEL", "what is it ?"),
    "eval": ("MODEL", "--report", "FOLDER/report.html"),
    "revert": ("MODEL", "--last", "1"),
    "verify": ("MODEL", "--deep"),
    "merge": ("MODEL", "-o", "FOLDER/merged", "--verify"),
}


def main(folder: Path, device: str) -> None:
    if device != "cpu":
        set_up()
    world = World(folder)
    world.edits(3)
    ended = {}
    for name, options in COMMANDS.items():
        filled = [option.replace("MODEL", str(world.model)).replace("FOLDER", str(folder)) for option in options]
        found = run(name.split()[0], *filled, "--device", device, "--attention", "eager")
        ended[name] = found.code
    print(json.dumps(ended))  # noqa: T201


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2])
