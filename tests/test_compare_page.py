"""The page of a comparison: one file, no network, right when used in a browser."""

from __future__ import annotations

import html.parser
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from compared import made, save
from groupnorm.cli import main


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


class _Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.data, self.inside = [], "", ""

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = dict(attributes).get("id", "") if tag == "script" else ""

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, text):
        if self.inside == "data":
            self.data += text


def _page():
    """A report on a case with two bad groups, one of them with an infinity."""
    _, _, outputs = made(shape=(3, 12, 5, 7))
    dx = outputs["dx"].copy()
    dx[1, 5] += 0.25
    dx[2, 11, 0, 0] = np.inf
    Path("dev").mkdir()
    save("dev/dx.npy", dx)
    for name in ("dgamma", "dbeta"):
        save(f"dev/{name}.npy", outputs[name])
    with pytest.raises(SystemExit) as done:
        main(["compare", "dev", "case", "--html", "report.html"])
    assert done.value.code == 1
    return outputs["dx"], dx


def test_the_page_is_one_file_without_a_network():
    _page()
    text = Path("report.html").read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    for _tag, attributes in page.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "data:").startswith("data:")
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    found = json.loads(page.data)["results"][0]
    assert found["map"]["cells"][1][1] == pytest.approx(0.25)
    assert found["map"]["cells"][2][2] == "inf"
    assert found["map"]["g"] == [[0, 0], [1, 1], [2, 2]]


def _browser():
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        path = shutil.which(name)
        if path:
            return path
    return None


# What a user would do, run inside the page after its own script; the answer is left in the document.
_DRIVER = """
<script>
"use strict";
const said = {errors: window.pageErrors};
const cells = [...document.querySelectorAll(".heat")[0].querySelectorAll("[role=gridcell]")];
const tip = document.querySelector(".tip");
said.cells = cells.length;
said.stops = cells.filter((c) => c.tabIndex === 0).length;
cells[4].dispatchEvent(new MouseEvent("mouseenter"));
said.hover = tip.textContent;
cells[0].focus();
cells[0].dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown", bubbles: true, cancelable: true}));
said.moved = tip.textContent;
said.active = document.activeElement === cells[3];
const table = document.querySelector("table.worst");
const column = (i) => [...table.tBodies[0].rows].map((r) => r.cells[i].textContent);
const press = (i) => table.tHead.rows[0].cells[i].querySelector("button").click();
press(2); said.down = column(2).map(Number); said.sort = table.tHead.rows[0].cells[2].getAttribute("aria-sort");
press(2); said.up = column(2).map(Number);
said.bars = document.querySelectorAll("svg .bar").length;
said.points = document.querySelectorAll("svg circle").length;
said.sections = document.querySelectorAll("section").length;
said.scrolls = document.documentElement.scrollWidth > window.innerWidth;
said.dark = getComputedStyle(document.body).backgroundColor;
const answer = document.createElement("pre"); answer.id = "answer"; answer.textContent = JSON.stringify(said);
document.body.append(answer);
</script>
"""
_LISTENER = "<script>window.pageErrors = []; addEventListener('error', (e) => pageErrors.push(e.message));</script>"


@pytest.mark.parametrize("size", ["1200,900", "420,800"])
def test_the_page_in_a_browser(size):
    browser = _browser()
    if browser is None:
        pytest.skip("no Chromium here: the page was not opened (apt-get install chromium)")
    _page()
    text = Path("report.html").read_text(encoding="utf-8")
    text = text.replace("<main", _LISTENER + "<main").replace("</body>", _DRIVER + "</body>")
    Path("driven.html").write_text(text, encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={Path('profile').resolve()}"]
    done = subprocess.run(
        [
            *command,
            "--enable-logging=stderr",
            f"--window-size={size}",
            "--dump-dom",
            Path("driven.html").resolve().as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
    )
    found = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    said = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert said["errors"] == []
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    assert (said["cells"], said["stops"], said["sections"]) == (9, 1, 3)
    assert said["hover"].startswith("n 1, g 1: largest error 0.25")
    assert "35 outside tolerance" in said["hover"]
    assert (said["moved"].startswith("n 1, g 0: largest error 0"), said["active"]) == (True, True)
    assert said["sort"] == "descending"
    assert said["down"] == sorted(said["down"], reverse=True)
    assert said["up"] == sorted(said["up"])
    assert len(set(said["up"])) > 10
    assert said["points"] > 500
    assert said["bars"] >= 3
    assert not said["scrolls"]
