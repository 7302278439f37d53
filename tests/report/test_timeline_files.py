"""Files of a timeline: what the readers of each format look at is there, and is right."""

from __future__ import annotations

import collections
import itertools
import json
import pathlib
import pickle
import pickletools
import sys
from typing import Any

import numpy as np
import pytest

import coop_jax
from coop_jax._src.report import figure, memory_viz, perfetto
from coop_jax._src.report.timeline_data import Ending, Kind
from tests.benchmarks.large_timelines import large_timeline
from tests.report.steps import timeline

# What the page of memory_viz can unpickle.
_OPCODES = set(
    "PROTO FRAME STOP MARK MEMOIZE BINGET LONG_BINGET BINPUT LONG_BINPUT NONE NEWTRUE NEWFALSE"
    " BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE EMPTY_TUPLE TUPLE TUPLE1"
    " TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS".split()
)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("memory_viz") / "step.pickle"
    timeline().save(path)
    used = {opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())}
    assert used <= _OPCODES
    read: dict[str, Any] = pickle.loads(path.read_bytes())
    return read


def assert_are_frames(frames: list[dict[str, Any]]) -> None:
    for frame in frames:
        assert set(frame) == {"filename", "line", "name"}
        assert type(frame["filename"]) is type(frame["name"]) is str
        assert type(frame["line"]) is int


def test_segments_of_memory_viz_are_full_of_blocks(snapshot: dict[str, Any]) -> None:
    (segment,) = snapshot["segments"]
    assert segment["device"] == segment["stream"] == segment["address"] == 0
    assert segment["total_size"] == timeline().pool_bytes
    end = 0
    for block in segment["blocks"]:  # the page adds sizes up to find addresses
        assert block["address"] == end
        assert block["state"] in ("active_allocated", "inactive")
        assert 0 <= block["requested_size"] <= block["size"]
        assert_are_frames(block["frames"])
        end += block["size"]
    assert end == segment["total_size"]
    active = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
    assert sum(b["size"] for b in active) == segment["allocated_size"] == segment["active_size"]
    assert sum(b["requested_size"] for b in active) == segment["requested_size"]
    assert segment["segment_type"] == "large"
    assert segment["frames"] == []


def test_events_of_memory_viz_lead_to_the_blocks_at_the_end(snapshot: dict[str, Any]) -> None:
    (events,) = snapshot["device_traces"]
    held: dict[int, int] = {}
    sizes = []
    asked = None
    for event in events[1:]:
        assert event["stream"] == 0
        assert_are_frames(event["frames"])
        address, size = event["addr"], event["size"]
        if event["action"] == "alloc":
            assert all(a + n <= address or address + size <= a for a, n in held.items())
            held[address] = size
        elif event["action"] == "free_requested":
            asked = address
        else:
            assert event["action"] == "free_completed"
            assert asked == address  # the page joins the two
            assert held.pop(address) == size
        sizes.append(sum(held.values()))
    (segment,) = snapshot["segments"]
    active = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
    assert held == {b["address"]: b["size"] for b in active}
    reserved = sum(b["size"] for b in active if b["frames"][0]["name"] == "reserved")
    assert max(sizes) == timeline().live_bytes.max() + reserved
    assert [e["time_us"] for e in events[1:]] == sorted(e["time_us"] for e in events[1:])


def test_categories_of_memory_viz_have_the_one_that_it_asks_for(snapshot: dict[str, Any]) -> None:
    (events,) = snapshot["device_traces"]
    found = {event["category"] for event in events}
    assert "unknown" in found
    assert found - {"unknown"} <= {kind.name.lower() for kind in Kind}
    assert {e["action"] for e in events if e["category"] == "unknown"} == {"snapshot"}


def test_frames_of_memory_viz_name_the_operation_and_the_line(snapshot: dict[str, Any]) -> None:
    (events,) = snapshot["device_traces"]
    frames = [e["frames"] for e in events[1:] if len(e["frames"]) == 2]
    operation, user = frames[0]
    assert "float32[" in operation["name"]
    assert user["filename"].endswith("steps.py")
    assert user["line"] > 0
    assert user["name"].startswith("step")


def test_a_large_pool_goes_through_memory_viz() -> None:
    found = memory_viz.snapshot(large_timeline(2000))
    assert len(found["device_traces"][0]) > 2000


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("perfetto") / "step.json"
    timeline().save(path)
    read = json.loads(path.read_text())
    assert read["displayTimeUnit"] in ("ms", "ns")
    assert read["otherData"]["pool_bytes"] == timeline().pool_bytes
    found: list[dict[str, Any]] = read["traceEvents"]
    return found


# What the Trace Event Format asks of an event of each phase, beside name, ph, pid and tid.
_FIELDS = {
    "M": {"args"},
    "X": {"ts", "dur", "cat", "args"},
    "C": {"ts", "args"},
    "i": {"ts", "s", "cat", "args"},
    "s": {"ts", "cat", "id"},
    "f": {"ts", "cat", "id", "bp"},
    "b": {"ts", "cat", "id", "args"},
    "e": {"ts", "cat", "id"},
}


def test_each_event_of_a_trace_has_the_fields_of_its_phase(events: list[dict[str, Any]]) -> None:
    for event in events:
        assert type(event["name"]) is str
        assert event["name"]
        assert type(event["pid"]) is type(event["tid"]) is int
        missing = _FIELDS[event["ph"]] - set(event)
        assert not missing, (event, missing)
        assert event["ts"] >= 0
        if event["ph"] == "C":
            assert all(type(v) in (int, float) for v in event["args"].values())
        if event["ph"] == "i":
            assert event["s"] in "gpt"


def test_slices_follow_each_other(events: list[dict[str, Any]]) -> None:
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == timeline().moments
    for before, after in itertools.pairwise(slices):
        assert before["ts"] + before["dur"] <= after["ts"] * (1 + 1e-12)
    again = [e for e in slices if e["args"]["recomputed"]]
    assert len(again) == timeline().recomputations
    assert {e["cat"] for e in again} == {"recomputation"}


def test_flows_lead_from_evictions_to_recomputations(events: list[dict[str, Any]]) -> None:
    slices = {e["ts"]: e for e in events if e["ph"] == "X"}
    evictions = [e for e in events if e["ph"] == "i"]
    assert len(evictions) == timeline().evictions
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert begins
    assert begins.keys() == ends.keys()
    for number, begin in begins.items():
        end = ends[number]
        assert (begin["name"], begin["cat"]) == (end["name"], end["cat"])  # bound by these
        assert begin["ts"] < end["ts"]
        assert begin["ts"] in slices
        assert slices[end["ts"]]["args"]["recomputed"]
        assert end["bp"] == "e"


def test_counters_have_the_bytes_of_the_timeline(events: list[dict[str, Any]]) -> None:
    counters = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["name"]].append(event)
    assert set(counters) == {"live bytes", "fragmentation"}
    assert max(e["args"]["pool"] for e in counters["live bytes"]) == timeline().live_bytes.max()
    assert max(e["args"]["share"] for e in counters["fragmentation"]) <= 1
    for found in counters.values():
        assert [e["ts"] for e in found] == sorted(e["ts"] for e in found)


def test_residences_begin_and_end_once(events: list[dict[str, Any]]) -> None:
    begins = {(e["cat"], e["id"], e["name"]): e["ts"] for e in events if e["ph"] == "b"}
    ends = {(e["cat"], e["id"], e["name"]): e["ts"] for e in events if e["ph"] == "e"}
    assert len(begins) == len(timeline().residences)
    assert begins.keys() == ends.keys()
    assert all(begins[key] <= ends[key] for key in begins)


def test_without_times_an_operation_takes_a_microsecond() -> None:
    rows = [coop_jax_row(0, 0, 1), coop_jax_row(64, 1, 2)]
    found = coop_jax.Timeline.from_buffers(rows, moments=3, pool_bytes=128)
    slices = [e for e in perfetto.trace(found)["traceEvents"] if e["ph"] == "X"]
    assert [(e["ts"], e["dur"]) for e in slices] == [(0, 1), (1, 1), (2, 1)]


def coop_jax_row(address: int, first: int, last: int) -> Any:
    from coop_jax._src.report.timeline import BufferRow
    from coop_jax._src.report.timeline_data import Label

    return BufferRow(address, 64, first, last, Kind.FORWARD, Label("add"))


@pytest.mark.parametrize(("ending", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
@pytest.mark.parametrize("residences", [0, 20_000])
def test_figures_are_written(
    ending: str, begin: bytes, residences: int, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("matplotlib")
    found = large_timeline(residences) if residences else timeline()
    path = tmp_path / f"step.{ending}"
    found.save(path)
    assert path.read_bytes().startswith(begin)
    assert path.stat().st_size < 2_000_000  # many rectangles are pixels


def test_pixels_show_what_lies_at_their_centre() -> None:
    found = timeline()
    width, height = 40, 30
    pixels = figure.pixels_of(found, width, height)
    rows = found.residences
    for x in range(width):
        moment = (x + 0.5) / width * found.moments
        for y in range(height):
            address = (y + 0.5) / height * found.pool_bytes
            there = (rows.begin <= moment) & (moment < rows.end)
            there &= (rows.address <= address) & (address < rows.address + rows.nbytes)
            there &= rows.address >= 0
            expected = rows.kind[there]
            white = pixels[y, x].tolist() == [255, 255, 255]
            assert white == (len(expected) == 0), (x, y)


def test_a_figure_without_matplotlib_says_what_to_install(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"coop-jax\[plots\]"):
        timeline().save(tmp_path / "step.png")


def test_evictions_are_marked_where_they_end() -> None:
    rows = timeline().residences
    assert np.count_nonzero(rows.ending == Ending.EVICTED) == timeline().evictions > 0
