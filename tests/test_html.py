"""HTML for notebooks: well-formed, escaped, without script, as true as the text, and no reads."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Advice, PlanComparison, Rollout
from xloader.samples.samples import Samples
from xloader.show.cards import CARD_STYLE
from xloader.show.cost_figures import FIGURE_WORDS, FigureTable
from xloader.show.drawings import ResidenceTimes, draw_counts, draw_shares, draw_stays
from xloader.show.pages import render_page, write_page
from xloader.show.window_drawings import GridAxis, draw_chunk_grid
from xloader.testing import CountingStore, write_store

NAME = "<b>&'z\"500"
MOST_NBYTES = 20_000
"""A drawing is at most as large as this."""


class Tags(HTMLParser):
    """Collects the tags, attributes and text of a document, and checks that all tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.opened, f"not closed: {self.opened}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        assert "svg" not in self.opened, "text in a drawing is left over where drawings are taken"
        if "style" not in self.opened:
            self.text.append(data)

    @property
    def words(self) -> set[str]:
        return set(" ".join(self.text).split())


@pytest.fixture
def store() -> CountingStore:
    rng = np.random.default_rng(1)
    data = xr.Dataset(
        {name: (("time", "x"), rng.normal(size=(96, 8)).astype("f4")) for name in ("t", NAME)}
    )
    return CountingStore(write_store(data, {"t": (4, 4), NAME: (4, 4)}))


def opened(store: CountingStore) -> Samples:
    return xloader.open(store).window(time=3, stride=1)


def one_epoch(samples: Samples) -> Any:
    loader = samples.loader(
        batch_size=8, output="numpy", memory="4MiB", plan=xloader.PlanRules(lanes=2)
    )
    for _ in loader:
        pass
    return loader


def several_sets(samples: Samples) -> Any:
    return xloader.interleave({"one": (samples, 0.7), NAME: (samples, 0.3)})


def sets_epoch(samples: Samples) -> Any:
    loader = several_sets(samples).loader(batch_size=10, output="numpy", memory="8MiB")
    for _ in loader:
        pass
    return loader


def stock_loader(samples: Samples) -> Any:
    pytest.importorskip("torch")
    from xloader.torch import data_loader

    return data_loader(samples, batch_size=8)


SHOWN: dict[str, Callable[[Samples], Any]] = {
    "samples without windows": lambda samples: xloader.open(samples.recipe.source),
    "samples": lambda samples: samples.fillna(0.0),
    "patches": lambda samples: (
        xloader.open(samples.recipe.source)
        .window(time=4, x=2, stride={"time": 6, "x": 2})
        .inputs("t")
        .targets(NAME, time="+6")
    ),
    "samples without fields": lambda samples: samples.map(lambda ds: ds.drop_vars("nothing")),
    "a new loader": lambda samples: samples.loader(batch_size=8, output="numpy"),
    "a loader after an epoch": one_epoch,
    "explanation": lambda samples: samples.explain(batch_size=8, memory="64KiB"),
    "report": lambda samples: one_epoch(samples).report(),
    "batch": lambda samples: next(iter(samples.loader(batch_size=8, output="numpy"))),
    "plans": lambda samples: samples.compare_plans(memory=["4KiB", "64KiB", "4MiB"], batch_size=8),
    "sets": several_sets,
    "a loader of sets": sets_epoch,
    "explanation of sets": lambda samples: several_sets(samples).explain(batch_size=10),
    "report of sets": lambda samples: sets_epoch(samples).report(),
    "rollout": lambda samples: Rollout(lambda _: samples, batch_size=8, output="numpy"),
    "batch variance": lambda samples: samples.loader(
        batch_size=8, output="numpy", memory="4MiB"
    ).batch_variance(num_batches=3),
    "advice": lambda samples: samples.advise(batch_size=8),
    "coverage": lambda samples: samples.coverage(),
    "split": lambda samples: samples.split(time={"train": 0.7, NAME: 0.3}),
    "data_loader": stock_loader,
}


@pytest.mark.parametrize("kind", SHOWN)
def test_html_is_well_formed_and_as_true_as_the_text_and_reads_nothing(
    kind: str, store: CountingStore
) -> None:
    shown = SHOWN[kind](opened(store))
    before = store.reads.copy()
    html, text = shown._repr_html_(), repr(shown)
    assert store.reads == before
    check_tags(html)
    # Punctuation of the text's frame, such as <xloader.Samples, 94 samples>, is not a fact.
    told = re.sub(r"^<|>$|[,:]", " ", text, flags=re.MULTILINE)
    if isinstance(shown, FigureTable | PlanComparison | Advice):
        told = re.sub(r"[,:]", " ", str(shown))
    if kind in ("data_loader", "batch"):
        # The text of a stock loader has no facts, and that of a batch names the same otherwise.
        told = ""
    have = re.sub(r"[,:]", " ", " ".join(Tags(html).text)).split()
    assert set(told.split()) - set(have) <= {"of", "in", "no", "part"}
    if hasattr(shown, "close"):
        shown.close()


def check_tags(html: str) -> None:
    """HTML has no script, no style without a rule, and nothing from elsewhere."""
    tags = Tags(html)
    assert {tag for tag, _ in tags.tags} <= {
        *("div", "style", "b", "span", "details", "summary", "table", "thead", "tbody", "tr"),
        *("th", "td", "p", "figure", "figcaption", "svg", "g", "path", "i"),
    }
    for tag, attributes in tags.tags:
        allowed = {"class", "open", "align", "valign", "title"}
        if tag in ("svg", "g", "path"):
            allowed |= {"transform", "width", "height", "viewbox", "role", "aria-label", "d"}
            allowed |= {"fill", "stroke", "stroke-width", "stroke-dasharray", "opacity"}
        assert set(attributes) <= allowed
        # A class without a rule would have neither its place nor its colour.
        for kind in (attributes.get("class") or "").split():
            assert re.search(rf"\.{kind}\b", CARD_STYLE), kind
    assert "http" not in html
    assert "url(" not in html


def test_words_of_figures_are_explained_while_the_mouse_is_over_them(store: CountingStore) -> None:
    loader = one_epoch(opened(store))
    plans = opened(store).compare_plans(memory=["4MiB"], batch_size=8)
    for each in (loader, loader.explain(), plans, sets_epoch(opened(store))):
        tags = Tags(each._repr_html_()).tags
        hints = {attrs["title"] for tag, attrs in tags if tag == "th" and "title" in attrs}
        assert {FIGURE_WORDS["mixing"], FIGURE_WORDS["reads"]} <= hints
    # Rows of the comparison have their headings in cells.
    tags = Tags(loader.report()._repr_html_()).tags
    cells = {attrs["title"] for tag, attrs in tags if tag == "td" and "title" in attrs}
    assert FIGURE_WORDS["reads per chunk"] in cells
    assert FIGURE_WORDS["reads"] in cells


def test_each_explained_word_is_the_heading_of_a_row() -> None:
    folder = Path(xloader.__file__).parent
    names = ("show/cost_figures", "planning/explain", "planning/plan_comparison")
    names += ("loader/reports/report",)
    texts = "".join((folder / f"{name}.py").read_text("utf-8") for name in names)
    # Each stands once as a key of `FIGURE_WORDS`.
    assert [word for word in FIGURE_WORDS if texts.count(f'"{word}"') < 2] == []


def test_figures_of_other_things_have_no_hints(store: CountingStore) -> None:
    assert "title=" not in opened(store).coverage()._repr_html_()


def test_to_show_a_loader_plans_nothing_and_fixes_no_rank(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = opened(store).loader(batch_size=8, output="numpy")
    html = loader._repr_html_()
    assert "Call explain()" in html
    assert "chunks in memory" not in html
    # The rank that a launcher sets later is the loader's.
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (loader.rank, loader.world_size) == (1, 2)
    loader.explain()
    assert "chunks in memory" in loader._repr_html_()
    loader.close()
    assert "the loader is closed" in loader._repr_html_()


def test_samples_that_have_a_fault_are_shown(store: CountingStore) -> None:
    broken = xloader.open(store).window(time=3).inputs("t").map(lambda ds: ds.nothing)
    assert "fields</th><td>none: " in broken._repr_html_()


def boxes_of(svg: str, kind: str) -> list[list[float]]:
    """Left, top, width and height of the boxes of a class."""
    (path,) = re.findall(rf'<path class="{kind}"[^>]* d="([^"]*)"', svg)
    found = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)", path)
    return [[float(number) for number in box] for box in found]


def grid_axis(name: str, chunk: int, num: int, start: int, step: int | None) -> GridAxis:
    return GridAxis(name, np.arange(num + 1) * chunk, start, step)


def test_a_window_lies_on_the_chunks_to_scale() -> None:
    # Ten chunks of ten elements on 618 pixels; the window has elements 25 to 34, and 50 alone.
    columns, rows = grid_axis("time", 10, 10, 25, 45), grid_axis("lat", 4, 2, 4, None)
    fields = [("inputs", (0, 1, 10), (0, 1, 4)), ("targets", (25, 1, 1), (0, 1, 4))]
    drawing = draw_chunk_grid(columns, rows, fields)
    # Beside each other are 1 pixel of margin and 6.18 pixels for each element.
    assert boxes_of(drawing.svg, "xloader-c0") == [[155.5, 25.0, 61.8, 24.0]]
    assert boxes_of(drawing.svg, "xloader-c1") == [[310.0, 25.0, 6.2, 24.0]]
    # The next window, dashed, from its first element to its target.
    assert boxes_of(drawing.svg, "xloader-ink") == [[279.1, 25.0, 160.7, 24.0]]
    assert "time: 10 chunks; down: lat: 2 chunks. Dashed" in drawing.caption


def test_a_window_that_wraps_goes_on_at_the_begin() -> None:
    circle = GridAxis("lon", np.array([0, 5, 10]), 8, None, wraps=True)
    drawing = draw_chunk_grid(circle, None, [("t", (0, 1, 4), (0, 1, 1))])
    assert [round(left) for left, *_ in boxes_of(drawing.svg, "xloader-c0")] == [495, 1]


@pytest.mark.parametrize("start", [0, 200_001, 399_997])
def test_of_many_chunks_those_around_the_window_are_drawn(start: int) -> None:
    axis = grid_axis("time", 4, 100_000, start, None)
    drawing = draw_chunk_grid(axis, None, [("t", (0, 1, 3), (0, 1, 1))])
    first, last = map(
        int,
        re.findall(r"chunks ([\d,]+) to", drawing.caption.replace(",", ""))
        + re.findall(r"to (\d+) of 100000", drawing.caption.replace(",", "")),
    )
    assert first - 1 <= start // 4 < last <= 100_000
    ((left, _, width, _),) = boxes_of(drawing.svg, "xloader-c0")
    assert width >= 10
    assert 0 <= left <= 620 - width
    assert len(drawing.svg) < 3000


def test_a_window_of_many_chunks_keeps_the_drawing_small() -> None:
    axes = [grid_axis(dim, 1, 100_000, 0, 50_000) for dim in ("time", "lat")]
    fields = [("t", (0, 7, 10_000), (0, 7, 10_000))]
    assert len(draw_chunk_grid(axes[0], axes[1], fields).svg) < MOST_NBYTES


def stays(num_blocks: int, steps: tuple[int, int], *arrays: Any) -> ResidenceTimes:
    none = np.zeros(0, np.int64)
    lane, block, load, drop = map(np.asarray, arrays)
    num, first = steps[1] - steps[0], steps[0]
    return ResidenceTimes(
        ("t",), 0, num_blocks, int(lane.max()) + 1, num, first, lane, block, load, drop, none, none
    )


def test_stays_of_few_chunks_are_bars_to_scale() -> None:
    svg = draw_stays(stays(3, (10, 30), [0, 1], [0, 2], [10.0, 20.0], [15.0, 30.0])).svg
    # 31 pixels a step, 14 a chunk, the first chunk at the bottom.
    assert 'd="M0 35h155"' in svg
    assert 'd="M310 7h310"' in svg


@pytest.mark.parametrize(("num_stays", "num_lanes"), [(600, 16), (100_000, 1), (100_000, 16)])
def test_stays_in_any_order_make_a_small_drawing(num_stays: int, num_lanes: int) -> None:
    rng = np.random.default_rng(0)
    num_blocks = 90 if num_stays < 1000 else 100_000
    # Only odd chunks are used.
    block = rng.integers(0, num_blocks // 2, num_stays) * 2 + 1
    load = rng.uniform(0, 990, num_stays)
    lane = rng.integers(0, num_lanes, num_stays)
    drawing = draw_stays(stays(num_blocks, (0, 1000), lane, block, load, load + 5))
    assert 1000 < len(drawing.svg) < MOST_NBYTES
    assert Tags(drawing.to_html())
    assert (" chunks is drawn." in drawing.caption) == (num_stays > 1000)


def test_counts_are_columns_and_what_never_comes_is_marked() -> None:
    drawing = draw_counts("time", np.array([2, 2, 0, 1]))
    assert boxes_of(drawing.svg, "xloader-c0") == [[0, 0, 310, 36], [465, 18, 155, 18]]
    assert boxes_of(drawing.svg, "xloader-c5") == [[310, 36, 155, 4]]
    many = np.ones(100_000)
    many[77_777] = 0
    drawing = draw_counts("time", many)
    # One of 310 columns has the element that never comes.
    ((left, *_),) = boxes_of(drawing.svg, "xloader-c5")
    assert left == pytest.approx(620 * 0.77777, abs=2.1)
    assert len(drawing.svg) < MOST_NBYTES
    noisy = np.random.default_rng(0).integers(0, 5, 100_000)
    assert len(draw_counts("time", noisy).svg) < MOST_NBYTES


def test_shares_fill_the_bar() -> None:
    drawing = draw_shares("all", {"a": 1.0, "b": 0.0, "rest": 3.0}, rest="rest")
    assert boxes_of(drawing.svg, "xloader-c0") == [[0, 0, 155, 14]]
    assert boxes_of(drawing.svg, "xloader-ground") == [[155, 0, 465, 14]]
    assert [name for _, name in drawing.legend] == ["a 25%", "b 0%", "rest 75%"]


def test_stays_are_not_drawn_where_nothing_is_loaded(store: CountingStore) -> None:
    loader = one_epoch(opened(store))
    told = loader.explain()
    assert told.num_reads == 0
    assert "chunks in memory" not in told._repr_html_()
    loader.close()


def test_a_page_is_one_file_with_both_themes(tmp_path: Path, store: CountingStore) -> None:
    samples = opened(store)
    write_page(tmp_path / "page.html", NAME, samples, "a <p> of words", 7)
    text = (tmp_path / "page.html").read_text("utf-8")
    tags = Tags(text)
    assert text.startswith("<!DOCTYPE html>")
    assert ("meta", {"charset": "utf-8"}) in tags.tags
    assert "prefers-color-scheme:dark" in text
    assert {NAME, "a <p> of words", "7"} <= set(tags.text)
    assert samples._repr_html_() in text
    file = io.StringIO()
    write_page(file, NAME, samples)
    assert file.getvalue() == render_page(NAME, samples)


def test_a_page_that_cannot_be_made_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    class Broken:
        def _repr_html_(self) -> str:
            raise ZeroDivisionError

    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError):
        write_page(path, "title", Broken())
    assert path.read_text() == "before"
