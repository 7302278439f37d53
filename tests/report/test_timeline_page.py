"""The page in a browser: no complaint, no request, the right storage on hover and on click."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

import coop_jax
from coop_jax._src.report import timeline_page
from coop_jax._src.report.program_timeline import BufferRow
from coop_jax._src.report.timeline_data import Ending, Kind, Label
from tests.benchmarks.large_timelines import large_timeline
from tests.report import browser
from tests.report.steps import timeline

needs_browser = pytest.mark.skipif(bool(browser.why_missing()), reason=browser.why_missing())


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser.browser() as found:
        yield found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("page") / "step.html"
    timeline().save(path)
    return path


@pytest.fixture(scope="module")
def shown(started: Any, path: pathlib.Path) -> browser.OpenedPage:
    return browser.opened(started, path)


def test_the_package_has_every_part_of_the_page() -> None:
    parts = importlib.resources.files("coop_jax._src.report") / "page"
    there = {part.name for part in parts.iterdir() if not part.name.startswith("__")}
    assert there == {*timeline_page.SCRIPTS, "page.html", "page.css"}


def test_the_page_needs_no_network(path: pathlib.Path) -> None:
    text = path.read_text()
    assert not re.search(r"https?://(?!www\.w3\.org)|\bsrc=|@import|url\(", text)
    assert "default-src 'none'" in text
    assert "<!--" not in text.replace("<!doctype", "")


def test_titles_are_escaped(tmp_path: pathlib.Path) -> None:
    found = dataclasses.replace(timeline(), title="</title><script>alert(1)</script>")
    found.save(tmp_path / "step.html")
    assert "<script>alert" not in (tmp_path / "step.html").read_text()


# A point in the middle of the largest residence of a kind, in CSS pixels, and its number.
_POINT = """(wanted) => {
  const panel = memoryTimeline.panels[0];
  const {model} = panel;
  let best = -1;
  let most = 0;
  for (let i = 0; i < model.count; i += 1) {
    if (model.address[i] < 0 || !wanted.includes(i)) continue;
    const [left, right, top, bottom] = panel.boxOf(i);
    const area = (right - left) * (bottom - top);
    if (area > most) [best, most] = [i, area];
  }
  const [left, right, top, bottom] = panel.boxOf(best);
  const box = panel.pool.getBoundingClientRect();
  return [best, box.left + (left + right) / 2, box.top + (top + bottom) / 2];
}"""


def point_of(shown: browser.OpenedPage, wanted: list[int]) -> tuple[int, float, float]:
    number, x, y = shown.evaluate(_POINT, wanted)
    return number, x, y


def of_kind(kind: Kind) -> list[int]:
    rows = timeline().residences
    return [p for p, k in enumerate(rows.kind.tolist()) if k == kind]


@needs_browser
def test_a_page_opens_without_complaints_or_requests(
    shown: browser.OpenedPage, path: pathlib.Path
) -> None:
    assert shown.complaints == []
    assert shown.requests == [path.as_uri()]
    said = shown.evaluate(
        "(() => { const m = memoryTimeline.panels[0].model;"
        " return [m.moments, m.count, m.evictions, m.recomputations, m.peakMoment,"
        " m.peakBytes]; })()"
    )
    found = timeline()
    assert said == [
        found.moments,
        len(found.residences),
        found.evictions,
        found.recomputations,
        found.peak_moment,
        found.peak_bytes,
    ]


@needs_browser
def test_addresses_of_more_than_four_bytes_are_shown(started: Any, tmp_path: pathlib.Path) -> None:
    row = functools.partial(BufferRow, first=0, last=1, kind=Kind.FORWARD, label=Label("add"))
    places = [(0, 3), (7, 1 << 40), (1 << 41, 5), (-1, 11)]
    rows = [row(address=address, nbytes=nbytes) for address, nbytes in places]
    found = coop_jax.Timeline.from_buffers(rows, moments=2, pool_bytes=1 << 42)
    found.save(tmp_path / "large.html")
    shown = browser.opened(started, tmp_path / "large.html")
    said = shown.evaluate(
        "(({address, nbytes}) => [[...address], [...nbytes]])(memoryTimeline.panels[0].model)"
    )
    assert [tuple(x) for x in zip(*said, strict=True)] == places
    shown.page.close()


@needs_browser
def test_hovering_names_the_storage(shown: browser.OpenedPage) -> None:
    rows, labels = timeline().residences, timeline().labels
    for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.STATE):
        number, x, y = point_of(shown, of_kind(kind))
        shown.page.mouse.move(x, y)
        assert shown.evaluate("memoryTimeline.panels[0].hovered") == number
        text = shown.page.inner_text("#tooltip")
        label = labels[rows.label[number]]
        assert label.operation in text
        assert f"{label.dtype}[{', '.join(map(str, label.shape))}]" in text
        assert f"({int(rows.asked_bytes[number]):,})" in text
        if label.source:
            assert re.search(r"steps\.py:\d+", text)
        assert f"operations {rows.begin[number]} to {rows.end[number] - 1}" in text
    shown.page.mouse.move(5, 5)
    assert not shown.page.is_visible("#tooltip")


@needs_browser
def test_hovering_counts_recomputations(shown: browser.OpenedPage) -> None:
    rows = timeline().residences
    again = [p for p, n in enumerate(rows.recomputation.tolist()) if n]
    _, x, y = point_of(shown, again)
    shown.page.mouse.move(x, y)
    assert "1st recomputation of" in shown.page.inner_text("#tooltip")
    evicted = [p for p, e in enumerate(rows.ending.tolist()) if e == Ending.EVICTED]
    _, x, y = point_of(shown, evicted)
    shown.page.mouse.move(x, y)
    assert "then evicted" in shown.page.inner_text("#tooltip")
    shown.page.mouse.move(5, 5)


@needs_browser
def test_a_click_lists_what_is_live_by_line(shown: browser.OpenedPage) -> None:
    number, x, y = point_of(shown, of_kind(Kind.BACKWARD))
    shown.page.mouse.click(x, y)
    moment = shown.evaluate("memoryTimeline.current.moment")
    rows = timeline().residences
    assert rows.begin[number] <= moment < rows.end[number]
    lines = timeline().live_at(moment)
    sizes = [line.nbytes for line in lines if line.source]
    listed = shown.evaluate("memoryTimeline.list.groups.map((g) => [g.name, g.bytes])")
    expected = [[line.source, line.nbytes] for line in lines if line.source]
    assert [x for x in listed if "steps.py" in x[0]] == expected
    assert sizes
    assert "steps.py" in shown.page.inner_text("#lines")


@needs_browser
def test_the_filter_and_a_chosen_line(shown: browser.OpenedPage) -> None:
    page = shown.page
    page.fill("#filter", "no such line")
    assert "nothing" in page.inner_text("#lines")
    page.fill("#filter", "steps.py")
    rows = page.query_selector_all("#lines .line")
    assert rows
    rows[0].click()
    assert shown.evaluate("memoryTimeline.panels[0].singled.reduce((a, b) => a + b)") > 0
    page.click("#clear")
    assert shown.evaluate("memoryTimeline.panels[0].singled") is None
    page.fill("#filter", "")


@needs_browser
def test_wheel_drag_and_keys_move_the_view(shown: browser.OpenedPage) -> None:
    page = shown.page
    box = page.query_selector(".stage").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def seen() -> list[float]:
        view = shown.evaluate(
            "(({left, right, low, high}) => [left, right, low, high])(memoryTimeline.view)"
        )
        return list(view)

    page.click("#reset")
    page.mouse.move(x, y)
    page.mouse.wheel(0, -500)
    left, right, low, high = seen()
    assert right - left < 0.5
    assert (low, high) == (0, 1)
    page.mouse.down()
    page.mouse.move(x - 100, y, steps=3)
    page.mouse.up()
    assert seen()[0] > left
    page.focus(".stage")
    for key in ("ArrowLeft", "+", "]", "ArrowUp"):
        before = seen()
        page.keyboard.press(key)
        assert seen() != before, key
    page.keyboard.press("0")
    assert seen() == [0, 1, 0, 1]


@needs_browser
def test_keys_lead_to_evictions_and_to_the_peak(shown: browser.OpenedPage) -> None:
    page, found = shown.page, timeline()
    page.click("#peak")
    assert shown.evaluate("memoryTimeline.current.moment") == found.peak_moment
    page.keyboard.press("r")
    moment = shown.evaluate("memoryTimeline.current.moment")
    assert found.launches.recompute[moment]
    page.keyboard.press(",")
    assert shown.evaluate("memoryTimeline.current.moment") == moment - 1
    page.keyboard.press("E")
    moment = shown.evaluate("memoryTimeline.current.moment")
    rows = found.residences
    assert ((rows.ending == Ending.EVICTED) & (rows.end == moment)).any()


@needs_browser
def test_axis_colour_and_theme_are_chosen(shown: browser.OpenedPage) -> None:
    page = shown.page
    page.click("text=Seconds")
    assert shown.evaluate("memoryTimeline.panels[0].model.axis") == "seconds"
    page.click("text=By line")
    page.click("#theme")
    assert shown.evaluate("document.documentElement.dataset.theme") == "dark"
    page.click("#theme")
    page.click("text=By kind")
    page.click("text=Operations")
    page.click("#legend button[data-kind=backward]")
    assert page.get_attribute("#legend button[data-kind=backward]", "aria-pressed") == "true"
    page.click("#legend button[data-kind=backward]")
    assert shown.complaints == []


@needs_browser
@pytest.mark.parametrize(
    ("width", "scheme"), [(1600, "light"), (1600, "dark"), (420, "light"), (420, "dark")]
)
def test_two_runs_fit_wide_and_narrow_light_and_dark(
    width: int, scheme: str, started: Any, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "two.html"
    timeline().save(path, beside=timeline(None))
    opened = browser.opened(started, path, width=width, scheme=scheme)
    assert opened.complaints == []
    assert opened.evaluate("memoryTimeline.theme") == scheme
    assert opened.evaluate("memoryTimeline.panels.length") == 2
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    # The same share of the time is chosen in both.
    opened.evaluate("memoryTimeline.choose(memoryTimeline.panels[0], 5)")
    first, second = opened.evaluate(
        "memoryTimeline.panels.map(({model, moment}) => model.position[moment])"
    )
    assert abs(first - second) < 0.05
    opened.page.close()


@needs_browser
@pytest.mark.slow
def test_a_million_residences_are_shown(started: Any, tmp_path: pathlib.Path) -> None:
    found = large_timeline(1_050_000)
    assert len(found.residences) >= 1_000_000
    path = tmp_path / "large.html"
    found.save(path)
    shown = browser.opened(started, path)
    assert shown.complaints == []
    assert shown.evaluate("memoryTimeline.panels[0].model.count") == len(found.residences)
    rows = found.residences
    number, x, y = point_of(shown, rows.nbytes.argsort()[-2000:].tolist())
    shown.page.mouse.move(x, y)
    assert shown.evaluate("memoryTimeline.panels[0].hovered") == number
