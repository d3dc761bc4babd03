"""Fuzzed checkpoint files: safetensors, torch files of both kinds."""

from __future__ import annotations

import argparse
import collections
import io
import json
import pickle
import struct
import zipfile
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import save

from tests.fuzz.guard import expect
from tests.fuzz.mutations import edited_bytes, edited_trees
from tests.fuzz.target import Target, written
from vitattack.models.weights.safe_load import foreign_names
from vitattack.models.weights.state_dict import read_state

STATE = {"head.weight": torch.arange(12.0).view(3, 4), "head.bias": torch.zeros(3), "steps": torch.tensor(7)}


class _Reduced:
    """Pickled as a call of whatever it is given."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def _torch(content: Any, **how: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **how)
    return stream.getvalue()


@cache
def _torch_seeds() -> list[bytes]:
    tied = torch.arange(6.0)
    contents = (
        *(
            STATE,
            {"state_dict": STATE, "epoch": 3},
            {"model": {"ema": STATE}},
            {"args": argparse.Namespace(lr=0.1), **STATE},
        ),
        *(
            {"a": tied, "b": tied[::2], "c": tied.expand(4, 6)},
            collections.OrderedDict(STATE),
            {"half": tied.half(), "b": tied > 2},
        ),
        *(
            {"s": torch.eye(3).to_sparse()},
            [1, 2],
            {"q": torch.nn.Parameter(tied)},
            {"f": _Reduced(print, "x"), **STATE},
        ),
    )
    files = [_torch(content) for content in contents]
    files += [_torch(content, _use_new_zipfile_serialization=False) for content in contents[:6]]
    return [
        *files,
        pickle.dumps({"a": 1}),
        pickle.dumps(_Reduced(eval, "1+1"), 2),
        pickle.dumps(_Reduced(exec, "1"), 4),
    ]


@st.composite
def zipped_torch_files(draw: st.DrawFn) -> bytes:
    """A torch file whose members are edited, so that the archive itself stays readable."""
    seed = draw(st.sampled_from([file for file in _torch_seeds() if file[:2] == b"PK"]))
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(seed)) as old, zipfile.ZipFile(stream, "w") as new:
        members = {info.filename: old.read(info) for info in old.infolist()}
        victim = draw(st.sampled_from([*members, *[name for name in members if name.endswith("data.pkl")] * 3]))
        for name, data in members.items():
            new.writestr(name, draw(edited_bytes([data])) if name == victim else data)
    return stream.getvalue()


def torch_files() -> st.SearchStrategy[bytes]:
    return st.one_of(edited_bytes(_torch_seeds()), zipped_torch_files())


@st.composite
def safetensors_files(draw: st.DrawFn) -> bytes:
    """Files with an edited header in front of the right tensors, and files with edited bytes."""
    seeds = [
        save(STATE),
        save({"a": torch.zeros(0)}),
        save({"x": torch.ones(2, dtype=torch.bfloat16)}, {"format": "pt"}),
    ]
    if draw(st.booleans()):
        return draw(edited_bytes(seeds))
    seed = draw(st.sampled_from(seeds))
    length = int.from_bytes(seed[:8], "little")
    header = draw(edited_trees([json.loads(seed[8 : 8 + length])]))
    text = json.dumps(header).encode(errors="surrogatepass")
    claimed = draw(st.sampled_from((len(text), len(text), len(text), len(text) + 1, 0, 2**63, len(text) + 10**6)))
    return struct.pack("<Q", claimed) + text + seed[8 + length :]


def _check_state(name: str, data: bytes) -> None:
    path = written(name, data)
    for keys in ((), ("state_dict", ".")):
        state = read_state(path, weights_key=keys or None, strip_prefix="module.")
        for key, tensor in state.items():
            expect(isinstance(key, str) and isinstance(tensor, torch.Tensor), f"{key!r} is a {type(tensor).__name__}")
            if tensor.layout is torch.strided:
                expect(
                    tensor.numel() * tensor.element_size() <= 4 * len(data) + 4096, f"{key!r} is larger than its file"
                )
                tensor.clone()


def _torch_file(data: bytes) -> None:
    path = written("w.pt", data)
    if data[:2] in (b"PK", b"\x80\x02"):
        foreign_names(path, "zip" if data[:2] == b"PK" else "pickle")
    _check_state("w.pt", data)


TARGETS = (
    Target("safetensors", safetensors_files, lambda data: _check_state("w.safetensors", data)),
    Target("torch files", torch_files, _torch_file),
)
