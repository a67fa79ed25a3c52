"""A report in a real browser: light, dark, narrow and printed, without a request and without a complaint."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from browser_kit import CHROMIUM, Page, browser

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from made_run import Made, make_run

from harness.records.layout import RunFolder
from harness.report.write import write_report

needs_chromium = pytest.mark.skipif(
    not CHROMIUM and os.environ.get("CI") != "true", reason="chromium is not installed (apt-get install chromium)"
)
WIDE, NARROW, PAPER = 1280, 390, 718  # a sheet of A4 within its margins

_TOO_WIDE = """
[...document.querySelectorAll("table, svg, p, li, h1, h2, figcaption")]
  .filter((element) => element.checkVisibility() && element.getBoundingClientRect().right > innerWidth + 1)
  .map((element) => element.tagName + ": " + element.textContent.slice(0, 60))
"""
_COLOURS = """
({
  paper: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color,
  drawn: [...document.querySelectorAll("svg.chart text")].map((text) => getComputedStyle(text).fill),
})
"""


async def evaluate(page: Page, expression: str) -> Any:
    return (await page.call("Runtime.evaluate", expression=expression, returnByValue=True))["result"].get("value")


async def opened(page: Page, address: str) -> None:
    await page.open(address)
    deadline = time.monotonic() + 30
    while not await evaluate(page, "document.readyState === 'complete' && document.querySelectorAll('svg.chart').length > 5"):
        assert time.monotonic() < deadline, page.complaints
        await asyncio.sleep(0.1)


async def shown_as(page: Page, width: int, *, scheme: str = "light", media: str = "") -> None:
    size = {"width": width, "height": 900, "screenWidth": width, "screenHeight": 900}
    await page.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=width < 600)
    scheme_feature = [{"name": "prefers-color-scheme", "value": scheme}]
    await page.call("Emulation.setEmulatedMedia", media=media, features=scheme_feature)
    asked = f"{media or 'screen'} and (device-width: {width}px) and (prefers-color-scheme: {scheme})"
    deadline = time.monotonic() + 30
    while not await evaluate(page, f"matchMedia('{asked}').matches"):  # the browser's answer can be there before its effect
        assert time.monotonic() < deadline, f"never {asked}"
        await asyncio.sleep(0.05)


def brightness(colour: str) -> float:
    numbers = [float(number) for number in colour.removeprefix("rgb(").rstrip(")").split(",")]
    return sum(numbers) / 3


@needs_chromium
async def test_a_report_reads_in_light_and_dark_on_a_phone_and_on_paper_and_asks_nobody(tmp_path: Path) -> None:
    assert CHROMIUM, "CI must have chromium"
    name = "a-run-whose-name-is-" + "very-" * 12 + "long"
    run = make_run(tmp_path / "runs", Made(name=name, nodes=8, per_node=4, qps=150, seconds=20, again_every=300))
    written = write_report([(RunFolder(run), None)], tmp_path / "report")
    address = (written.folder / "report.html").as_uri()
    async with browser(tmp_path / "profile") as new_page:
        page = await new_page()
        await opened(page, address)

        await shown_as(page, WIDE)
        light = await evaluate(page, _COLOURS)
        assert brightness(light["paper"]) > 250
        assert max(brightness(fill) for fill in light["drawn"]) < 130, "letters of charts are dark on white"
        assert await evaluate(page, "document.documentElement.scrollWidth <= innerWidth")

        await shown_as(page, WIDE, scheme="dark")
        dark = await evaluate(page, _COLOURS)
        assert brightness(dark["paper"]) < 40
        assert min(brightness(fill) for fill in dark["drawn"]) > 120, "letters of charts are light on black"

        await shown_as(page, NARROW)
        assert await evaluate(page, "document.documentElement.scrollWidth") == NARROW

        await evaluate(page, "document.querySelectorAll('details').forEach((folded) => folded.open = true)")
        await shown_as(page, PAPER, scheme="dark", media="print")
        assert (await evaluate(page, _COLOURS))["paper"] == light["paper"], "paper is white, whatever the screen likes"
        assert await evaluate(page, _TOO_WIDE) == []
        printed = base64.b64decode((await page.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True))["data"])
        assert printed.startswith(b"%PDF")
        assert 5 <= printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 40

        await shown_as(page, WIDE)
        assert await sorted_by_a_click(page)
        assert page.requests == [address]
        assert page.complaints == []


async def sorted_by_a_click(page: Page) -> bool:
    """The table of replicas by tokens/s: the most first, and the least first after another click."""
    script = """
    (() => {
      const table = [...document.querySelectorAll("table.sorts")].find((one) => one.tHead.textContent.includes("z TTFT"));
      const place = [...table.tHead.rows[0].cells].findIndex((head) => head.textContent === "tokens/s");
      const values = () => [...table.tBodies[0].rows].map((row) => Number(row.cells[place].textContent.replaceAll(",", "")));
      const button = table.tHead.rows[0].cells[place].querySelector("button");
      button.click();
      const down = values();
      button.click();
      const up = values();
      return [down, up];
    })()
    """
    down, up = await evaluate(page, script)
    return len(down) >= 8 and down == sorted(down, reverse=True) and up == sorted(up)
