"""Debian's Chromium without a window, and what a test wants to know of a page in it."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def open_browser() -> Iterator[webdriver.Chrome]:
    """A browser with a new profile. It keeps what is written to the console, and every request."""
    options = Options()
    options.binary_location = shutil.which("chromium") or "chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or "chromedriver"))
        try:
            yield driver
        finally:
            driver.quit()


def show(driver: webdriver.Chrome, page: Path, width: int = 1440, scheme: str = "light", height: int = 900) -> None:
    """Opens a page at this width with light or dark colours; what was noted before is forgotten."""
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get("about:blank")
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    driver.get(page.as_uri())
    wait_for_frames(driver)


def wait_for_frames(driver: webdriver.Chrome) -> None:
    """Until what was asked for has been drawn."""
    driver.execute_async_script(
        "const next = requestAnimationFrame, done = arguments[0]; next(() => next(() => next(done)))"
    )


def list_messages(driver: webdriver.Chrome) -> list[Any]:
    """What was written to the console."""
    return list(driver.get_log("browser"))


def list_requests(driver: webdriver.Chrome) -> list[str]:
    """The addresses that were asked for."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def take_picture(driver: webdriver.Chrome, target: Path, height: int | None = None) -> None:
    """A PNG of the page from its top, of all of it unless a height is given."""
    size = driver.execute_script("return [innerWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": size[0], "height": height or size[1], "scale": 1}
    picture = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(base64.b64decode(picture["data"]))
