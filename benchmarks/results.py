"""Where do measured numbers stand? Each benchmark owns one section of RESULTS.md and rewrites it whole."""

import platform
import re
from datetime import date
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "RESULTS.md"


def write_section(title: str, text: str) -> None:
    old = (
        RESULTS.read_text(encoding="utf-8")
        if RESULTS.exists()
        else "# Results\n\nEach section is written by the command it names.\n"
    )
    section = f"## {title}\n\n{text}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.S | re.M)
    new = pattern.sub(lambda _: section + "\n", old) if pattern.search(old) else f"{old.rstrip()}\n\n{section}"
    RESULTS.write_text(new.rstrip() + "\n", encoding="utf-8")


def replace_rows(lines: list[str]) -> None:
    """Rows measured again take the place of those that begin alike."""
    text = RESULTS.read_text(encoding="utf-8").splitlines()
    new = {line.split("|")[1]: line for line in lines}
    RESULTS.write_text("\n".join(new.get(line.split("|")[1], line) if "|" in line else line for line in text) + "\n")


def machine() -> str:
    """Date, versions, processor: what a number means nothing without."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    processor = found.group(1) if found else platform.processor() or platform.machine()
    return f"{date.today()}, torch {torch.__version__}, Python {platform.python_version()}, {processor}"
