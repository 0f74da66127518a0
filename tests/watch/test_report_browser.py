"""A report in a real browser, opened as the file that it is: curves, smoothing, zoom, and other runs beside it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser

from windtunnel.recipe import load_recipe
from windtunnel.run import Metrics, RunFolder
from windtunnel.watch import write_run_page

EVIL = "</script><img src=x onerror=\"document.title='broken'\">"
PLAN = {"layout": {"batch_tokens": 1024}, "tokens_per_second": 1000.0}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


def make(root: Path, steps: int = 400) -> Path:
    with RunFolder.create(root, load_recipe("charlm", ["model.depth=2"]), rig={}, plan=PLAN) as run:
        with Metrics(run.metrics_path) as metrics:
            for step in range(1, steps + 1):
                values = {"loss": 2 + 8 * math.exp(-step / 8) + 0.2 * (step % 2), "tokens_per_second": 900.0, "odd": float(step)}
                metrics.log(step, values | ({"validation_loss": 2.1 + 1 / step} if step % 100 == 0 else {}))
        told = {"step": steps, "bits_per_byte": 1.2345, "samples": [{"prompt": EVIL, "text": " upon"}]}
        (run.path / "evaluation.json").write_text(json.dumps(told))
        run.finish("done", EVIL)
        return run.path


def chart(title: str) -> str:
    return f"[...document.querySelectorAll('.chart')].find(c => c.querySelector('h3').textContent.startsWith('{title}'))"


@pytest.mark.parametrize("width", [1200, 400])
def test_a_report_draws_smooths_and_zooms(tmp_path: Path, width: int) -> None:
    page = write_run_page(make(tmp_path / "runs"))
    with Browser(tmp_path / "profile") as browser:
        browser.open(page.as_uri(), width)
        browser.until("document.querySelectorAll('.chart canvas').length >= 3")
        assert browser.value("document.documentElement.scrollWidth") == width
        painted = "(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v))"
        assert browser.value(f"{painted}(document.querySelector('.chart canvas'))") is True
        legend = f"{chart('Loss')}.querySelector('.legend').textContent"
        assert browser.until(legend).startswith("loss 2.0")  # a mean of 2.0 and 2.2 by turns
        slider = "document.querySelector('.smoothing input')"
        browser.value(f"{slider}.value = 0; {slider}.dispatchEvent(new Event('input'))")
        assert browser.value(legend).startswith("loss 2v")
        # What falls far at first is not drawn until it is asked for; the canvas has the card's width.
        start = f"{chart('Loss')}.querySelector('.top button')"
        assert browser.value(f"[{start}.textContent, {start}.hidden]") == ["start", False]
        before = browser.value(f"{chart('Loss')}.querySelector('canvas').toDataURL()")
        browser.value(f"{start}.click()")
        assert browser.value(f"{chart('Loss')}.querySelector('canvas').toDataURL()") != before
        share = f"(c => c.querySelector('canvas').clientWidth / c.clientWidth)({chart('Loss')})"
        assert browser.value(share) > 0.85
        browser.value(f"{chart('Loss')}.scrollIntoView()")
        place = f"{chart('Loss')}.querySelector('canvas').getBoundingClientRect()"
        left, middle, wide = browser.value(f"(r => [r.left, r.top + r.height / 2, r.width])({place})")
        for kind, at in (("mousePressed", 0.3), ("mouseMoved", 0.6), ("mouseReleased", 0.6)):
            mouse = {"x": left + at * wide, "y": middle, "button": "left", "buttons": 1, "clickCount": 1}
            browser.ask("Input.dispatchMouseEvent", type=kind, **mouse)
        assert browser.value(f"[...{chart('Loss')}.querySelectorAll('.top button')].at(-1).hidden") is False
        assert EVIL in browser.value("document.querySelector('.sample').textContent")
        assert not browser.value("document.title").startswith("broken")
        assert browser.problems == []


MARKS = """(() => {
  const [said, own] = [new Map(), CanvasRenderingContext2D.prototype.fillText];
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const marks = said.get(this.canvas) ?? said.set(this.canvas, new Set()).get(this.canvas);
    if (this.textAlign === "%s" && this.textBaseline === "%s") marks.add(text);
    own.call(this, text, x, y);
  };
  document.querySelector('.smoothing input').dispatchEvent(new Event('input'));
  CanvasRenderingContext2D.prototype.fillText = own;
  return [...said.values()].map(marks => marks.size);
})()"""


def test_a_narrow_chart_has_marks_enough_to_tell_its_scale(tmp_path: Path) -> None:
    page = write_run_page(make(tmp_path / "runs", 1344))
    with Browser(tmp_path / "profile") as browser:
        browser.open(page.as_uri(), 390)
        browser.until("document.querySelectorAll('.chart canvas').length >= 3")
        marks = browser.value(MARKS % ("center", "top"))
        assert len(marks) >= 3
        assert min(marks) >= 2
        # The plan's 1,000 tokens a second, the band below it and the 900 that were reached lie within less than an octave.
        browser.value(
            "[...document.querySelectorAll('.chart .top button')].filter(b => b.textContent === 'log').map(b => b.click())"
        )
        assert min(browser.value(MARKS % ("right", "middle"))) >= 2


def test_other_reports_are_drawn_beside_a_report(tmp_path: Path) -> None:
    first, second = (write_run_page(make(tmp_path / "runs", steps)) for steps in (400, 300))
    with Browser(tmp_path / "profile") as browser:
        browser.open(first.as_uri(), 1000)
        browser.until("document.querySelectorAll('.chart canvas').length >= 3")
        browser.ask("DOM.enable")
        root = browser.ask("DOM.getDocument")["root"]["nodeId"]
        node = browser.ask("DOM.querySelector", nodeId=root, selector="input[type=file]")["nodeId"]
        (tmp_path / "other.html").write_text("<p>no report</p>")
        browser.ask("DOM.setFileInputFiles", nodeId=node, files=[str(second), str(tmp_path / "other.html")])
        chips = f"[...{chart('loss')}.querySelectorAll('.legend span')].map(chip => chip.textContent.split(' ')[0])"
        assert browser.until(chips) == [first.parent.name, second.parent.name]
        assert browser.value("document.querySelector('select').value") == "tokens"
        assert "no curves in other.html" in browser.value("document.getElementById('bar').textContent")
        browser.value("[...document.querySelectorAll('#bar button')].find(b => b.textContent == 'this run alone').click()")
        assert browser.value(f"{chart('Loss')}.querySelectorAll('.legend span').length") == 2
        assert browser.problems == []
