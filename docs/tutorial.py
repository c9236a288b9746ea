"""Runs the commands of docs/tutorial.md and writes their output and pictures into it: `python docs/tutorial.py`.

The page is opened in Chromium for its picture; without a browser the old one stays, and this says so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE / "tutorial.md"
PICTURES = HERE / "tutorial"


def run(command: str, folder: Path) -> str:
    """What a command prints; a line tells the exit code where it is not 0."""
    environment = {**os.environ, "COLUMNS": "100", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
    text = "\n".join(line.rstrip() for line in (done.stdout + done.stderr).splitlines())
    return text + (f"\n(exit code {done.returncode})" if done.returncode else "")


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "device.py").write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])

        def filled(block: re.Match[str]) -> str:
            commands = [line[2:] for line in block[1].splitlines() if line.startswith("$ ")]
            lines = []
            for command in commands:
                lines += [f"$ {command}", *run(command, folder).splitlines()]
            return "```console\n" + "\n".join(lines) + "\n```"

        text = re.sub(r"```console\n(.*?)```", filled, text, flags=re.DOTALL)
        PAGE.write_text(text, encoding="utf-8")
        PICTURES.mkdir(exist_ok=True)
        shutil.copy(folder / "gap.png", PICTURES / "gap.png")
        browser = shutil.which("chromium") or shutil.which("google-chrome")
        if browser is None:
            print("no Chromium: the picture of the report was not made again")
            return
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1200,1250",
        ]
        target = f"--screenshot={(PICTURES / 'report.png').resolve()}"
        subprocess.run([*command, target, (folder / "report.html").as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
