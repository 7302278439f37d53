"""A headless Chromium for tests and benchmarks of pages: the system's, driven by playwright."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def why_missing() -> str:
    """Why there is no browser; "" if there is one."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return "" if _executable() else f"none of {', '.join(_NAMES)} is installed"


def _executable() -> str | None:
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A browser; `playwright.sync_api.Browser`."""
    from playwright.sync_api import sync_playwright

    # Chromium has no sandbox for root, which containers often run as.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=_executable(), args=arguments)
        try:
            yield started
        finally:
            started.close()


class OpenedPage:
    """A page with what it has complained of so far."""

    def __init__(self, context: Any, path: pathlib.Path):
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", timeout=60_000)

    def evaluate(self, script: str, *arguments: Any) -> Any:
        """What JavaScript says, for instance of `memoryTimeline`."""
        return self.page.evaluate(script, *arguments)


def opened(
    started: Any,
    path: pathlib.Path,
    *,
    width: int = 1600,
    height: int = 900,
    scheme: str = "light",
) -> OpenedPage:
    """A file in a window of a size in CSS pixels, light or dark."""
    size = {"width": width, "height": height}
    return OpenedPage(started.new_context(viewport=size, color_scheme=scheme), path)
