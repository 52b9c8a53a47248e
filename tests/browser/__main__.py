"""The picture of the README: the report of a LLaMA block, without the panels that a small picture cannot show."""

from __future__ import annotations

import tempfile
from pathlib import Path

from einc.report.html.page import write_plan_page
from tests.browser.chromium import open_browser, show, take_picture, wait_for_frames
from tests.browser.plans import plan_block

TARGET = Path(__file__).parents[2] / "docs" / "pictures" / "report.png"
MAX_BYTES = 300_000

SHORTEN = """
for (const one of document.querySelectorAll("#answer .split, .lead, .more, #idle, footer, .what, #timeline-detail, .top")) one.remove();
for (const one of document.querySelectorAll("h2")) one.style.marginTop = "14px";
for (const one of document.querySelectorAll("#machine, #exchanges, #memory")) one.remove();
const model = document.getElementById("model-picture"), operator = document.getElementById("operator");
for (const one of [model, operator]) { one.style.height = "412px"; one.style.overflow = "hidden"; }
model.scrollTop = 76;
"""  # noqa: E501


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, open_browser() as driver:
        page = Path(folder) / "block.html"
        page.write_text(write_plan_page(plan_block()), encoding="utf-8")
        show(driver, page, 1240)
        driver.execute_script(SHORTEN)
        wait_for_frames(driver)
        height = driver.execute_script(
            "return Math.ceil(document.querySelector('main').getBoundingClientRect().bottom)"
        )
        take_picture(driver, TARGET, height)
    size = TARGET.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(f"{TARGET} has {size:,} bytes, and {MAX_BYTES:,} at most are wanted")
    print(f"{TARGET}: {size:,} bytes")


if __name__ == "__main__":
    main()
