"""Image files, folders and archives made to hurt: one line each, nothing read outside, nothing written."""

from __future__ import annotations

import base64
import io
import random
import struct
import subprocess
import sys
import tarfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from tests.data.making import encoded, put, tar, val
from vitattack.core.errors import UsageError
from vitattack.data import load_data
from vitattack.data.formats.arrays import npz_source
from vitattack.data.formats.decoding import decode_rgb
from vitattack.data.formats.encoded_images import images_in_tar
from vitattack.data.formats.row_sources import ParquetSource, TensorSource
from vitattack.data.imagenet.validation import open_validation_images, open_validation_parquet


def refused(text: str, message: str, data_dir: Path | None = None) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        data = load_data(text, data_dir=data_dir, model_transform="bicubic256crop224")
        data.read(data.rows)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def huge_png(width: int, height: int) -> bytes:
    """A PNG that claims its size in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 10_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%EOF\n"


def test_an_image_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostScript under the name of a picture would be handed to Ghostscript."""
    started = tmp_path / "started"
    put(tmp_path / "bin" / "gs", f"#!/bin/sh\ntouch {started}\n".encode())
    (tmp_path / "bin" / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # look for it again
    put(tmp_path / "images" / "cat" / "a.png", EPS)
    refused(f"folder:{tmp_path}/images", "a.png is not a readable image .*none of PNG, JPEG, WEBP, BMP")
    assert not started.exists()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "PPM", "TIFF", "GIF", "MPO"])
def test_every_kind_of_picture_that_is_named_is_read(kind: str) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 100, 50)).save(stream, kind)
    assert decode_rgb(stream.getvalue(), "a").shape == (3, 8, 8)


@pytest.mark.parametrize("kind", ["ICO", "TGA", "PCX", "JPEG2000", "SGI", "PDF", "DDS"])
def test_other_kinds_of_pictures_are_not_parsed(kind: str) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 100, 50)).save(stream, kind)
    with pytest.raises(UsageError, match="none of PNG, JPEG, WEBP, BMP, PPM, TIFF, GIF"):
        decode_rgb(stream.getvalue(), "a")


def test_broken_and_exploding_images(tmp_path: Path) -> None:
    noise = Image.effect_noise((64, 64), 90).convert("RGB")
    stream = io.BytesIO()
    noise.save(stream, "JPEG")
    cases = {
        "cut": (stream.getvalue()[: len(stream.getvalue()) // 2], "a.png is not a readable image .*truncated"),
        "bomb": (huge_png(30_000, 30_000), "a.png is not a readable image .*decompression bomb"),
        "warned": (huge_png(10_000, 10_000), "10000 x 10000 pixels are a decompression bomb"),
        "thin": (encoded((0, 0, 0), (60_000, 1)), "60000 x 1 pixels are too long and thin"),
        "void": (b"", "is not a readable image"),
        "words": (b"<html>quota exceeded</html>", "is not a readable image"),
    }
    for name, (data, message) in cases.items():
        put(tmp_path / name / "cat" / "a.png", data)
        refused(f"folder:{tmp_path}/{name}", message)


def test_an_enormous_file_is_not_read(tmp_path: Path) -> None:
    path = put(tmp_path / "cat" / "a.png", b"")
    with path.open("r+b") as stream:
        stream.truncate(10**12)  # sparse
    refused(f"folder:{tmp_path}", "1,000,000,000,000 bytes, too many for one image")


def test_links_out_of_the_folder(tmp_path: Path) -> None:
    secret = put(tmp_path / "secret" / "a.png")
    inside = tmp_path / "data"
    put(inside / "cat" / "a.png")
    (inside / "cat" / "b.png").symlink_to("a.png")
    assert len(load_data(f"folder:{inside}")) == 2
    (tmp_path / "way").symlink_to(inside)
    assert len(load_data(f"folder:{tmp_path}/way")) == 2, "the folder itself may be a link"
    (inside / "cat" / "c.png").symlink_to(secret)
    refused(f"folder:{inside}", "c.png' is a link out of the data folder")
    (inside / "cat" / "c.png").unlink()
    (inside / "dog").symlink_to(tmp_path / "secret")
    refused(f"folder:{inside}", "dog' is a link out of the data folder")
    (inside / "dog").unlink()
    (inside / "dog").symlink_to(inside)
    refused(f"folder:{inside}", "dog' is a link to a folder")
    (inside / "dog").unlink()
    (inside / "cat" / "d.png").symlink_to("d.png")
    refused(f"folder:{inside}", "d.png' is a link to nothing")


def test_tars_that_lead_out_or_lie(tmp_path: Path) -> None:
    good = (val(1), encoded((1, 1, 1), form="JPEG"))
    for number, name in enumerate(("../../a.JPEG", "/etc/a.JPEG", "x/../../a.JPEG", "..\\a.JPEG")):
        root = tmp_path / str(number)
        tar(root / "ILSVRC2012_img_val.tar", [good, (name, b"x")])
        refused("imagenet[:1]", "a name that leads out of it: do not use it", root)
    assert not list(tmp_path.rglob("*.JPEG"))
    links = tmp_path / "links.tar"
    with tarfile.open(links, "w:") as archive:
        info = tarfile.TarInfo(val(2))
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(UsageError, match="which is no plain file"):
        images_in_tar(links)
    with pytest.raises(UsageError, match="twice: fetch it again"):
        images_in_tar(tar(tmp_path / "double.tar", [good, good]))
    with pytest.raises(UsageError, match="is compressed, .*: unpack it"):
        images_in_tar(tar(tmp_path / "packed.tar", [good], "w:gz"))
    with pytest.raises(UsageError, match="holds no image"):
        images_in_tar(tar(tmp_path / "bare.tar", [("words.txt", b"x")]))
    words = tmp_path / "words.tar"
    words.write_bytes(b"<html>" * 1000)
    with pytest.raises(UsageError, match="not a readable tar file"):
        images_in_tar(words)


def test_a_tar_that_ends_early(tmp_path: Path) -> None:
    path = tar(tmp_path / "ILSVRC2012_img_val.tar", [(val(1), encoded((1, 1, 1), form="JPEG"))])
    path.write_bytes(path.read_bytes()[:700])
    refused("imagenet[:1]", "cut off, fetch it again|not a readable tar", tmp_path)


def test_names_with_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    tar(tmp_path / "ILSVRC2012_img_val.tar", [("a\x1b[2J\nb.JPEG", b"x")])
    with pytest.raises(UsageError) as caught:
        load_data("imagenet[:1]", data_dir=tmp_path)
    assert str(caught.value).isprintable()


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, lost, or the end cut off."""
    worn = bytearray(data)
    for _ in range(rng.choice((1, 2, 8))):
        at = rng.randrange(len(worn))
        worn[at] = rng.choice((0, 255, rng.randrange(256)))
    cut = rng.randrange(1, len(worn))
    return bytes(worn[:cut]) if rng.random() < 0.2 else bytes(worn)


def test_damaged_files_give_images_or_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", image=np.zeros((3, 4, 4, 3), np.uint8), label=np.arange(3))
    np.savez_compressed(tmp_path / "packed.npz", image=np.zeros((3, 4, 4, 3), np.uint8), label=np.arange(3))
    jpeg = encoded((1, 1, 1), (20, 20), "JPEG")
    tar(tmp_path / "a.tar", [(val(1), jpeg), (val(2), jpeg)])
    cell = {"bytes": jpeg, "path": f"{val(1)}"}
    pq.write_table(pa.table({"image": [cell], "label": [65]}), tmp_path / "a.parquet")
    target = tmp_path / "target"

    def use_tar() -> None:
        source = open_validation_images(target, "resize8x8")
        source.read(source.available)

    def use_parquet() -> None:
        source = open_validation_parquet([target], "resize8x8")
        source.read(source.available)

    def use_npz() -> None:
        source = npz_source(target)
        source.read(range(min(3, len(source))))

    rng = random.Random(0)
    for name, use in (("a.tar", use_tar), ("a.parquet", use_parquet), ("plain.npz", use_npz), ("packed.npz", use_npz)):
        content, refusals = (tmp_path / name).read_bytes(), 0
        for _ in range(60):
            target.write_bytes(damaged(content, rng))
            try:
                use()
            except UsageError as error:
                refusals += 1
                assert str(error).isprintable()
        assert refusals > 5


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_a_parquet_that_would_fill_the_memory(codec: str, tmp_path: Path) -> None:
    cells = [{"bytes": bytes(1_000_000) + bytes([i % 256, i // 256]), "path": "a"} for i in range(100)]
    table = pa.table({"image": cells, "label": list(range(100))})
    pq.write_table(table, tmp_path / "bomb.parquet", compression=codec, use_dictionary=False)
    assert (tmp_path / "bomb.parquet").stat().st_size < 1_000_000
    with pytest.raises(
        UsageError, match=r"bomb.parquet would grow from [\d,]+ bytes to 100,[\d,]+: it is refused"
    ) as caught:
        ParquetSource([tmp_path / "bomb.parquet"], "image", "label", 100)
    assert str(caught.value).isprintable()


def test_a_parquet_that_repeats_one_image_without_end(tmp_path: Path) -> None:
    """Dictionaries grow as they are read, whatever the file says of its size."""
    cells = [{"bytes": bytes(500_000), "path": "a"}] * 400
    pq.write_table(pa.table({"image": cells, "label": [0] * 400}), tmp_path / "bomb.parquet")
    source = ParquetSource([tmp_path / "bomb.parquet"], "image", "label", 10)
    with pytest.raises(UsageError, match=r"bomb.parquet would grow from [\d,]+ bytes to 200,[\d,]+: it is refused"):
        source.cell(0)


@pytest.mark.parametrize("classes", [None, 10])
def test_a_label_larger_than_any_class(classes: int | None, tmp_path: Path) -> None:
    said = r"labels? .*1844674407370955161\d"
    large = np.array([0, 2**64 - 1], dtype=np.uint64)
    np.savez(tmp_path / "a.npz", image=np.zeros((2, 8, 8, 3), np.uint8), label=large)
    with pytest.raises(UsageError, match=said):
        npz_source(tmp_path / "a.npz", classes).read([0, 1])
    cell = {"bytes": encoded((0, 0, 0), (8, 8)), "path": "a"}
    pq.write_table(pa.table({"image": [cell] * 2, "label": large}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match=said):
        ParquetSource([tmp_path / "a.parquet"], "image", "label", 10).read([0, 1])
    with pytest.raises(UsageError, match=said):
        TensorSource(torch.zeros(2, 3, 8, 8), torch.from_numpy(large), classes)


def test_a_row_group_of_fewer_than_no_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": [b"x"], "label": [1]}), path)
    whole = path.read_bytes()
    for at in range(len(whole) - 1):
        if whole[at : at + 2] == b"\x16\x02":  # a count of one, as thrift writes it
            path.write_bytes(whole[: at + 1] + b"\x01" + whole[at + 2 :])
            with suppress(OSError):
                if pq.ParquetFile(path).metadata.row_group(0).num_rows == -1:
                    break
    else:
        raise AssertionError("no count was found")
    with pytest.raises(UsageError, match="says that it has -1 rows"):
        ParquetSource([path], "image", "label", 10)


# Six rows in two groups, written by pyarrow 26 with statistics of sizes; one byte of a histogram is another.
DAMAGED_HISTOGRAM = (
    "c-p;HJ8u&~5Z>K;U|U9VB6hVWEaW0t8ObsBCAK2uX8j@|MkH2HutamVtV<*(F?JxL<yTNqP*YH)qC%7r6$KTFC<0}QloaglopT{M3k*_"
    "5=b5?Ld3^g>W3TdN9_#oc!kGp(F_;G64b*M$2?AII@Pjf)7!2?YOfw=UAwFiZ2+}s1Sf~vqmZ>SBVlzl+6CrH|2)sqSID&gKWr&kpw!h"
    "=T=t5pv8L*`j0@_dq)KCRst#bhr6oBin1brOHw-=kz$moPdMwkgmheXehgZ?<dyd5x~ko;&K>$+!*G2|N)3$?Y0<*&$}_sL%vkzW``e!"
    "(MuejNEJJkt<Hwoa5rw84P*X-v)&4=)ps(jiebDw>j`G!1G9>(-M3pysf%+1+-q4ho2BTidSiaC|mKjrNPZ?oj%O>V0Q#a~3p`5`iuPM"
    "$c(?dw|5Pj8$SFiQ`rQm<cN_J9w2C5tE$i<Os1Qi(KulSQ$wmMv|_CFeUO9S*BGKEQ^GTc-8F`+;@;1K=xi^KTz17TyA^o_pZ9v)u%_b"
    "{0haxj&=50pKMDm4ZCexOidy$BgAA8a%zA-k$;TXp~-$4SGz6$NB=>TeT#%`%D>Qm2+3#2zQow8*krpBN<Y$N$;mY$IVC58|0Ip`X7l0"
    "3U2l!(5xOH~pO-o3Yuu9+&PBlGb<SO0aaF7=5*|pW!uhfa1eSZQ=PA9kE}AY1r&g)?Me>E8$s?ILY;D}{wbi@JtEx%IPnA+vda$bS33R"
    "!ZYOSJcXI<9=5LKz1jr<N@smfcmq*B<M>bw=C26#I6>N&?NUzYhb1<sZCUy?kiVP{3Pnkp*qhuvqZ`?%Tb1SRSm&{W?UJbl*Po9p!ZbI"
    "xF}yPtaA9Spa2cT#pSo6F{{lK7$W9`Id!Wvk*3{ukKz{lN"
)


def test_damaged_statistics_of_a_parquet_do_not_end_the_process(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(zlib.decompress(base64.b85decode(DAMAGED_HISTOGRAM)))
    script = (
        "from pathlib import Path\n"
        "from vitattack.core.errors import UsageError\n"
        "from vitattack.data.formats.row_sources import ParquetSource\n"
        "try:\n"
        "    ParquetSource([Path('a.parquet')], 'img', 'label', 3).read([0, 3])\n"
        "except UsageError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("a.parquet is not a readable parquet file (Definition level histogram size mismatch")
