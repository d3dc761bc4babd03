"""The page as text: its policy, its content, and names from hostile data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.report.stored_runs import drawn_records, job, record, store_run
from vitattack.core.table import Table
from vitattack.records.batch import Batch
from vitattack.records.report_section import Section
from vitattack.records.saved_examples import write_examples
from vitattack.report.overview.attachments import read_attachments
from vitattack.report.overview.read import read_overview
from vitattack.report.page.document import page
from vitattack.report.page.html import element, escaped, together
from vitattack.report.page.packing import Packing

HOSTILE = (
    "<script>alert(1)</script>",
    "\"quoted\" and 'quoted'",
    "x onmouseover=alert(1) y",
    "\x1b[31mred\x1b[0m\x07\r\n",
    "\u202eevil\u2066",
    "\u05e2\u05d1\u05e8\u05d9\u05ea",
    "</style></script><!-- ]]>",
    "{{content}} {{main}}",
    "a\ud800b",
)


class Parsed(HTMLParser):
    """Elements with their attributes, and the text of the page, apart from scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.raw: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = f"{tag} {dict(attrs).get('id', '')}".strip() if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[self._inside] = self.raw.get(self._inside, "") + data
        else:
            self.text += data

    def content(self) -> Any:
        return json.loads(self.raw["script content"])

    def column(self, place: dict[str, Any]) -> list[float]:
        block = zlib.decompress(base64.b64decode(self.raw["script columns"]))
        kind = np.dtype(f"<{place['type']}")
        return np.frombuffer(block, kind, place["n"], place["at"]).tolist()


def made(root: Path, **options: Any) -> Parsed:
    return Parsed(page(read_overview([root]), **options))


def test_the_page_asks_for_nothing_and_runs_nothing_but_its_own_script(tmp_path: Path) -> None:
    store_run(tmp_path, job(), drawn_records(30, 1))
    parsed = made(tmp_path)
    metas = {str(attrs.get("http-equiv")): attrs.get("content") for tag, attrs in parsed.elements if tag == "meta"}
    hashes = [
        base64.b64encode(hashlib.sha256(parsed.raw[name].encode()).digest()).decode() for name in ("script", "style")
    ]
    assert metas["Content-Security-Policy"] == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    for tag, attrs in parsed.elements:
        assert not [name for name in attrs if name.startswith("on") or name == "style"], (tag, attrs)
        assert not (attrs.get("src") or "").strip()
        assert (attrs.get("href") or "#").startswith(("#", "data:,"))


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_from_data_becomes_markup_or_moves_the_cursor(tmp_path: Path, text: str) -> None:
    section = Section("stages", {text: 1}, notes=(text,), tables=(Table(text, (text,), [(text,)], [text]),))
    run = job(model=text, data=text, threat=text)
    store_run(tmp_path, run, [record(0, "fooled", evidence={"stage": 0}), record(1)], sections=[section], doubts=[text])
    store_run(tmp_path, job(model=text), drawn_records(300, 1), finished=False)
    plain = tmp_path / "plain"
    store_run(plain, job(model="m", data="d"), [record(0, "fooled", evidence={"stage": 0}), record(1)])
    html = page(read_overview([tmp_path]), title=text, classes=[text] * 5)
    html.encode()
    parsed = Parsed(html)
    content = parsed.content()
    shown = "".join(character if character.isprintable() or character == "\n" else " " for character in text)
    assert content["sets"][0]["runs"][0]["model"] == shown
    assert content["sets"][0]["classes"] == [shown] * 5
    assert content["sets"][0]["runs"][0]["stages"] == [shown]
    assert shown in parsed.text
    assert [tag for tag, _ in parsed.elements].count("script") == 3
    assert not {tag for tag, _ in parsed.elements} & {"img", "iframe", "object", "b>"}
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", html)


def test_columns_come_out_as_the_records_went_in(tmp_path: Path) -> None:
    records = drawn_records(700, 1)
    store_run(tmp_path, job(), records)
    parsed = made(tmp_path)
    content = parsed.content()
    (images,) = content["sets"]
    columns = {name: parsed.column(place) for name, place in images["runs"][0]["columns"].items()}
    assert parsed.column(images["index"]) == [r.index for r in records]
    assert parsed.column(images["label"]) == [r.label for r in records]
    assert [content["statuses"][int(each)] for each in columns["status"]] == [r.status for r in records]
    assert columns["adversarial"] == [r.adversarial for r in records]
    assert columns["step"] == [r.first_fooled for r in records]
    assert columns["passes"] == [r.forwards + r.backwards for r in records]
    margins = [r.evidence.get("margin", np.nan) for r in records]
    assert np.allclose(columns["margin"], np.array(margins, float), rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize(
    "values", [[], [0, 255], [-1, 127], [-1, 128], [0, 65535], [-40000, 3], [0, 2**31], [-(2**40), 2**40]]
)
def test_a_column_takes_the_smallest_type_that_holds_it(values: Sequence[int]) -> None:
    packing = Packing()
    place = packing.add(np.array(values, np.int64))
    block = zlib.decompress(base64.b64decode(packing.text()))
    clipped = [max(-(2**31), min(value, 2**31 if min(values) >= 0 else 2**31 - 1)) for value in values]
    assert np.frombuffer(block, f"<{place['type']}", place["n"], place["at"]).tolist() == clipped


def test_the_verdict_names_number_interval_cost_and_doubts(tmp_path: Path) -> None:
    store_run(
        tmp_path, job(), [record(0), record(1, "fooled"), record(2, "clean_wrong"), record(3)], doubts=["a doubt"]
    )
    text = " ".join(made(tmp_path).text.split())
    assert "50.0 %robust, 95 % interval 15.0 to 85.0" in text
    assert "2 of 4 images of cifar10-demo[:10] withstand pgd" in text
    assert "8 forward and backward passes per attacked image, 12 s" in text
    assert "1 reason to doubt this numbera doubt" in text


def test_a_check_stands_beside_the_number_that_it_is_about(tmp_path: Path) -> None:
    store_run(tmp_path, job(), [record(0)])
    item = {"name": "saturation", "asks": "Does it?", "figure": "2 %", "passed": False, "decisive": True}
    found = {"attack": "auto", "found": 7}
    content = {
        "model": "tiny-vit",
        "threat": "linf:8/255",
        "data": "cifar10-demo[:10]",
        "verdict": "upper bound",
        "reasons": ["a <reason>"],
        "checks": [item],
        "certificate": {"says_nothing": "", "tested": 8, "found": [found]},
    }
    file = tmp_path / "check.json"
    file.write_text(json.dumps(content))
    parsed = Parsed(page(read_overview([tmp_path]), read_attachments([file])))
    assert "Certificate: of the examples planted in this model auto finds 7 of 8" in parsed.text
    assert "Checked: upper bound; a <reason>" in parsed.text
    assert "FAIL" in parsed.text
    file.write_text(json.dumps({**content, "threat": "linf:4/255"}))
    other = Parsed(page(read_overview([tmp_path]), read_attachments([file])))
    assert "Certificate:" not in other.text


def test_the_leaderboard_has_the_worst_case_and_every_attack(tmp_path: Path) -> None:
    store_run(tmp_path, job(attack="pgd"), [record(0, "fooled"), record(1)])
    store_run(tmp_path, job(attack="fgsm"), [record(0), record(1, "fooled")])
    html = page(read_overview([tmp_path]))
    assert re.findall(r'<tr class="(worst|only|attack)">', html) == ["worst", "attack", "attack"]


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    parsed = made(tmp_path)
    assert "Nothing to show yet" in parsed.text
    assert "vitattack eval" in parsed.text
    assert parsed.content()["sets"] == []


def test_an_interrupted_run_is_named_with_its_command(tmp_path: Path) -> None:
    store_run(tmp_path, job(attack="gama"), drawn_records(600, 1), finished=False)
    store_run(tmp_path, job(), drawn_records(20, 1))
    text = made(tmp_path).text
    assert "1 run is not finished" in text
    assert "512 images so far" in text
    assert "vitattack eval tiny-vit gama --threat linf:8/255" in text


def test_equal_stores_give_equal_pages(tmp_path: Path) -> None:
    store_run(tmp_path, job(), drawn_records(50, 1))
    assert page(read_overview([tmp_path])) == page(read_overview([tmp_path]))


@pytest.mark.parametrize(("size", "kind", "side"), [(8, "png", 8), (256, "webp", 128)])
def test_saved_examples_are_shown_as_strips_of_every_kind(tmp_path: Path, size: int, kind: str, side: int) -> None:
    records = [record(at, "fooled" if at % 2 else "robust", label=at % 4) for at in range(40)]
    folder = store_run(tmp_path, job(), records)
    clean = np.full((40, 3, size, size), 128, np.float32) / 255
    change = np.zeros_like(clean)
    change[:, :, : size // 2] = 0.03
    write_examples(folder, Batch(0, tuple(records)), {}, clean, clean + change)
    pictures = made(tmp_path, pictures=8).content()["pictures"]
    ((indices),) = [{int(index): strip for index, strip in of_run.items()} for of_run in pictures.values()]
    assert len(indices) == 8
    assert {at % 4 for at in indices} == {0, 1, 2, 3}
    source, amplified = indices[1]
    assert source.startswith(f"data:image/{kind};base64,")
    assert amplified == pytest.approx(0.4 / 0.03, rel=1e-3)
    path = tmp_path / "strip"
    path.write_bytes(base64.b64decode(source.partition(",")[2]))
    with Image.open(path) as image:
        assert image.size == (3 * side, side)
        top, bottom = (image.convert("RGB").getpixel((side + side // 2, y)) for y in (side // 4, 3 * side // 4))
    assert all(abs(value - 230) < 9 for value in top)  # 0.5 + 0.4
    assert all(abs(value - 128) < 9 for value in bottom)


def test_pictures_stay_within_their_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitattack.report.page.pictures.LARGEST", 3000)
    records = [record(at, "fooled") for at in range(20)]
    folder = store_run(tmp_path, job(), records)
    noise = np.random.default_rng(0).random((20, 3, 16, 16), np.float32)
    write_examples(folder, Batch(0, tuple(records)), {}, noise, noise)
    (of_run,) = made(tmp_path).content()["pictures"].values()
    assert 0 < len(of_run) < 20
    assert sum(len(source) for source, _ in of_run.values()) <= 3000


def test_elements_escape_what_they_are_given() -> None:
    assert element("p", "<b>", title='"') == '<p title="&quot;">&lt;b&gt;</p>'
    assert together([escaped("&"), None, "&"]) == "&amp;&amp;"
    assert element("p", element("b", "<"), hidden=True, id=None) == "<p hidden><b>&lt;</b></p>"


def run_command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vitattack.cli", "report", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_the_command_writes_the_file_and_says_so(tmp_path: Path) -> None:
    store_run(tmp_path / "runs", job(), drawn_records(20, 1))
    done = run_command("runs", "-o", "out.html", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "wrote out.html: 1 run," in done.stderr
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing/",), "'missing' is no folder: name one that eval --out wrote"),
        (("missing",), "'runs' holds no run: name another store with --out"),
        (("--out", "missing"), "'missing' is no folder"),
        (("notes.txt",), "'notes.txt' is not what check, diagnose-softmax, transfer or bench write with --json"),
        (("runs", "--classes", "missing"), "cannot read class names from 'missing'"),
        (("runs", "-o", "missing/out.html"), "cannot write"),
        (("runs", "--images", "-1"), "--images"),
    ],
)
def test_wrong_words_are_answered_in_one_line(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "notes.txt").write_text("notes")
    done = run_command(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
