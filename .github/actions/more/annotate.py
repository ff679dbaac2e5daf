"""Print the failures of a JUnit file as annotations of GitHub Actions; needs nothing but Python."""

import sys
from xml.etree import ElementTree


def escaped(text: str, further: str = "") -> str:
    """Return a text that cannot end its workflow command, or begin another one."""
    for letter in "%\r\n" + further:
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
    for failure in [*case.iter("failure"), *case.iter("error")]:
        title = escaped(f"{case.get('classname', '')}: {case.get('name', '')}", ":,")
        print(f"::error title={title}::{escaped(failure.get('message') or failure.text or 'failed')}")
