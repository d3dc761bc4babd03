"""The page in a real Chromium: sorting, filters, comparison, gallery, links to images, themes, and no request or error.

Needs Chromium and the package playwright (`pip install -e ".[browser]"`); axe-core is fetched from npm for the check of
contrast and names, which is skipped where that is not possible.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.stored_runs import drawn_records, job, record, store_run
from tests.report.test_page import HOSTILE
from vitattack.records import stats
from vitattack.records.batch import Batch
from vitattack.records.report_section import Section
from vitattack.records.saved_examples import write_examples
from vitattack.report.overview.read import read_overview
from vitattack.report.page.document import page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium")]
AXE = "axe-core@4.10.3"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, three attacks, pictures, stages, doubts, an unfinished run, and two sets of images."""
    root = tmp_path_factory.mktemp("store")
    for model in ("tiny-vit", "a-second-model"):
        for at, attack in enumerate(("fgsm", "pgd", "auto")):
            records = drawn_records(300, len(model) + at, 0.6 - 0.1 * at)
            stages = {"targets": sum(r.status == "fooled" for r in records)}
            records = [replace(r, evidence={**r.evidence, "stage": 0}) if r.status == "fooled" else r for r in records]
            run = job(model, attack, weights=model * 4)
            folder = store_run(root, run, records, sections=[Section("stages", stages)], doubts=["a doubt"] * (at == 2))
            if attack == "pgd":
                noise = np.random.default_rng(at).random((256, 3, 16, 16), np.float32)
                write_examples(folder, Batch(0, tuple(records[:256])), {}, noise, noise.clip(0.02, 0.98))
        store_run(root, job(model, "pgd", threat="linf:4/255", weights=model * 4), drawn_records(300, 3, 0.8))
    store_run(root, job("tiny-vit", "pgd", pixels="q" * 64), drawn_records(60, 4))
    store_run(root, job("tiny-vit", "gama"), drawn_records(600, 5), finished=False)
    path = root / "report.html"
    path.write_text(page(read_overview([root]), classes=[f"class {at}" for at in range(10)]))
    return path


class Opened:
    """A page with everything it asked for and complained about."""

    def __init__(
        self, browser: Any, path: Path, *, width: int = 1600, theme: str = "light", fragment: str = ""
    ) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        self.page.set_default_timeout(15_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url[:80]))
        self.page.on("dialog", lambda dialog: self.complaints.append("a dialog"))
        self.page.goto(path.as_uri() + fragment)
        self.page.wait_for_selector("html[data-ready=yes]")

    def close(self) -> None:
        own = [url for url in self.requests if not url.startswith(("data:", "file:"))]
        self.page.close()
        assert (self.complaints, own) == ([], [])


def shown(opened: Opened, column: int) -> list[str]:
    """The texts of a column of the leaderboard."""
    cells = opened.page.locator(f"#board tbody tr:not([hidden]) > :nth-child({column})")
    return [text.strip() for text in cells.all_inner_texts()]


def test_the_leaderboard_sorts_and_filters(chromium: Any, report: Path) -> None:
    opened = Opened(chromium, report)
    assert len(shown(opened, 1)) == 5
    opened.page.get_by_role("button", name="Robust %").click()
    values = [float(text) for text in shown(opened, 7)]
    assert values == sorted(values, reverse=True)
    opened.page.get_by_role("button", name="Robust %").click()
    assert [float(text) for text in shown(opened, 7)] == sorted(values)
    opened.page.get_by_role("button", name="Every attack").click()
    assert len(shown(opened, 1)) == 9
    opened.page.get_by_label("Filter").fill("second auto")
    assert shown(opened, 5) == ["auto"]
    opened.page.get_by_label("Filter").fill("")
    opened.page.get_by_label("Threat").select_option("linf:4/255")
    assert set(shown(opened, 2)) == {"linf:4/255"}
    opened.close()


def test_two_runs_are_compared_with_the_figures_of_the_statistics(chromium: Any, report: Path) -> None:
    overview = read_overview([report.parent])
    runs = {(run.job.model, run.job.attack, run.job.threat): run for run in overview.sets[0].runs}
    one, two = (runs["tiny-vit", attack, "linf:8/255"] for attack in ("pgd", "fgsm"))
    opened = Opened(chromium, report, fragment=f"#compare={one.job.key},{two.job.key}")
    expected = stats.paired_test(
        {i: verdict.robust for i, verdict in one.verdicts.items()},
        {i: verdict.robust for i, verdict in two.verdicts.items()},
    )
    facts = opened.page.locator("#compare .fact b").all_inner_texts()
    assert facts[2] == f"{expected.only_first} and {expected.only_second}"
    assert float(facts[3]) == pytest.approx(expected.p_value, rel=0.06, abs=6e-4)
    difference = 100 * (two.robust.accuracy - one.robust.accuracy)
    assert float(facts[1].split()[0].replace("\u2212", "-")) == pytest.approx(difference, abs=0.051)
    flipped = opened.page.locator("#compare tbody tr")
    assert flipped.count() == min(100, expected.only_first + expected.only_second)
    cells = flipped.first.locator(".chip").all_inner_texts()
    assert sorted(cells) == ["fooled", "robust"]
    opened.close()


@pytest.mark.parametrize("counts", [(56, 9, 2, 33), (40, 0, 0, 10), (0, 5, 0, 0), (3, 1, 1, 0), (100, 20, 35, 45)])
def test_the_statistics_of_the_page_are_those_of_the_package(
    chromium: Any, report: Path, counts: tuple[int, int, int, int]
) -> None:
    script = re.search(r"const Z95.*?(?=\n// What can be compared)", report.read_text(), re.DOTALL)
    assert script is not None
    opened = Opened(chromium, report)
    call = f"[...pairedGap{counts}, mcnemar({counts[1]}, {counts[2]})]"
    found = opened.page.evaluate(f"(() => {{ {script[0]}; return {call}; }})()")
    outcomes = [
        pair for pair, times in zip([(1, 1), (1, 0), (0, 1), (0, 0)], counts, strict=True) for _ in range(times)
    ]
    one, two = ({at: bool(pair[side]) for at, pair in enumerate(outcomes)} for side in (0, 1))
    assert found == pytest.approx([*stats.paired_gap(*counts), stats.paired_test(one, two).p_value], abs=1e-12)
    opened.close()


def test_an_image_has_an_address(chromium: Any, report: Path) -> None:
    opened = Opened(chromium, report, fragment="#image=41")
    dialog = opened.page.locator("dialog#image")
    assert dialog.locator("h3").inner_text() == "Image 41"
    assert dialog.locator("tbody tr").count() == 8
    dialog.press("ArrowRight")
    playwright.expect(dialog.locator("h3")).to_have_text("Image 42")
    assert opened.page.url.endswith("#image=42")
    opened.page.keyboard.press("Escape")
    playwright.expect(dialog).to_be_hidden()
    assert "#" not in opened.page.url
    opened.page.goto(report.as_uri() + "#image=9999")
    playwright.expect(dialog.locator("h3")).to_have_text("No image 9999")
    opened.close()


def test_the_gallery_is_filtered_by_outcome_class_stage_and_margin(chromium: Any, report: Path) -> None:
    opened = Opened(chromium, report)
    section = opened.page.locator("#images")
    tiles = section.locator(".tile")
    assert tiles.count() == 60
    section.locator(".tile img").first.scroll_into_view_if_needed()
    playwright.expect(section.locator(".tile img").first).to_have_js_property("naturalWidth", 48)
    section.get_by_label("Outcome").select_option("fooled")
    assert 0 < tiles.count() < 60
    assert set(section.locator(".tile .chip").all_inner_texts()) == {"fooled"}
    section.get_by_label("Stage").select_option(label="targets")
    section.get_by_label("Class").select_option(label="class 3")
    assert set(section.locator(".tile figcaption span:first-child").all_inner_texts()) == {"class 3"}
    section.get_by_label("Margin from").fill("100")
    assert tiles.count() == 0
    section.get_by_label("Margin from").fill("")
    section.get_by_label("Class").select_option("")
    section.get_by_role("button", name="List").click()
    assert section.locator("tbody tr").count() == 100
    section.locator(".scroll").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    playwright.expect(section.locator("tbody tr")).not_to_have_count(100)
    opened.close()


def test_every_kind_of_figure_is_drawn(chromium: Any, report: Path) -> None:
    opened = Opened(chromium, report)
    for name in ("Accuracy", "Passes", "Budgets", "Stages"):
        opened.page.locator("#figures").get_by_role("button", name=name, exact=True).click()
        opened.page.wait_for_selector("#figures .plot .canvas svg")
    first = opened.page.locator("#figures .plot").first
    first.locator("summary").click()
    playwright.expect(first.locator("tbody tr").first).to_be_visible()  # filled when it is opened
    opened.close()


def test_the_theme_is_that_of_the_machine_until_another_is_chosen(chromium: Any, report: Path) -> None:
    opened = Opened(chromium, report, theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = opened.page.evaluate(ground)
    opened.page.get_by_role("button", name="Theme: auto").click()
    light = opened.page.evaluate(ground)
    opened.page.get_by_role("button", name="Theme: light").click()
    assert opened.page.evaluate(ground) == dark != light
    opened.close()


@pytest.mark.parametrize("width", [390, 1600])
def test_nothing_is_wider_than_the_screen(chromium: Any, report: Path, width: int) -> None:
    opened = Opened(chromium, report, width=width)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    opened.page.goto(report.as_uri() + "#image=41")
    assert opened.page.evaluate("document.querySelector('#image').getBoundingClientRect().width") <= width
    opened.close()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    done = npm and subprocess.run(
        [npm, "pack", "--silent", AXE], cwd=folder, capture_output=True, timeout=120, check=False
    )
    archives = [*folder.glob("*.tgz")]
    if not done or not archives:
        pytest.skip("axe-core cannot be fetched from npm")
    with tarfile.open(archives[0]) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1600])
@pytest.mark.parametrize("fragment", ["", "#image=41"])
def test_contrast_names_and_roles_are_sound(
    chromium: Any, report: Path, axe: str, theme: str, width: int, fragment: str
) -> None:
    opened = Opened(chromium, report, width=width, theme=theme, fragment=fragment)
    opened.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    opened.page.evaluate(axe)  # through the debugger, which no policy of the page concerns
    found = opened.page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice']})")
    problems = [f"{each['id']}: {node['html'][:120]}" for each in found["violations"] for node in each["nodes"][:2]]
    assert problems == []
    opened.close()


def test_hostile_names_are_shown_as_they_are(chromium: Any, tmp_path: Path) -> None:
    for at, text in enumerate((*HOSTILE, "one long name " * 9, "oneword" * 30)):
        section = Section("stages", {text: 1}, notes=(text,))
        records = [record(0, "fooled", evidence={"stage": 0}), record(1)]
        store_run(tmp_path, job(text, f"pgd(steps={at + 2})"), records, sections=[section], doubts=[text])
    path = tmp_path / "report.html"
    path.write_text(page(read_overview([tmp_path]), title=HOSTILE[0], classes=HOSTILE))
    opened = Opened(chromium, path, fragment="#image=0")
    texts = opened.page.locator("#image tbody th").all_inner_texts()
    assert "<script>alert(1)</script>" in texts
    assert "\"quoted\" and 'quoted'" in texts
    assert opened.page.title() == "<script>alert(1)</script>"
    opened.page.keyboard.press("Escape")
    for width in (1600, 390):
        opened.page.set_viewport_size({"width": width, "height": 900})
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    opened.close()


@pytest.mark.timeout(2400)  # nearly all of it to write the store
def test_a_large_store_opens_quickly_and_scrolls(chromium: Any, tmp_path: Path) -> None:
    for at in range(12):
        store_run(tmp_path, job(attack=f"pgd(steps={at + 2})"), drawn_records(50_000, at))
    path, began = tmp_path / "report.html", time.process_time()
    path.write_text(page(read_overview([tmp_path])))
    written = time.process_time() - began
    began = time.perf_counter()
    opened = Opened(chromium, path, fragment="#image=41777")
    ready = time.perf_counter() - began
    opened.page.keyboard.press("Escape")
    opened.page.locator("#images .scroll").evaluate(
        "box => { for (let n = 0; n < 30; n++) box.scrollTo(0, box.scrollHeight); }"
    )
    size = path.stat().st_size / 1e6
    assert size < 8
    assert (written < 20, ready < 4) == (True, True), (
        written,
        ready,
    )  # twice the time to open: others may be computing
    opened.close()
