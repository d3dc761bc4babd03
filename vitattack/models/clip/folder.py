"""Towers and tokenizers that a folder in open_clip's format states: `open_clip_config.json` beside the tokenizer's files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitattack.core import files
from vitattack.core.errors import UsageError, text_failure
from vitattack.core.words import printable

CONFIG, VOCABULARY = "open_clip_config.json", "vocab.txt"
UNKNOWN = "[UNK]"  # what stands for a word that the vocabulary cannot spell
LARGEST = {CONFIG: 1 << 20, VOCABULARY: 16 << 20}  # bytes
Tokenizer = Callable[[Sequence[str]], Tensor]


def is_folder(name: str) -> bool:
    """Whether a name of an architecture is that of such a folder."""
    return (Path(name) / CONFIG).is_file() or ("/" in name and Path(name).is_dir())


def register_folder(open_clip: Any, folder: Path) -> tuple[str, Tokenizer | None]:
    """Make a folder known to open_clip under a name made of its content; with its tokenizer, unless open_clip's is meant."""
    text = _read(folder / CONFIG)
    try:
        config: Any = json.loads(text)["model_cfg"]
        tower = dict(config["text_cfg"])
        length = int(tower.get("context_length", 77))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"'{folder / CONFIG}' does not describe a model of open_clip: fetch it again") from error
    for key in ("hf_model_name", "hf_tokenizer_name"):
        if tower.get(key):
            raise UsageError(f"'{folder / CONFIG}' asks for {key} {printable(str(tower[key]), 40)}, which is not read")
    own = tower.pop("vocab_path", None) is not None
    vocabulary = _read(folder / VOCABULARY) if own else ""
    name = "folder-" + hashlib.sha256(f"{text}\0{vocabulary}".encode()).hexdigest()[:24]
    files.cache_folder("clip-architectures")
    described = files.cache_home() / "clip-architectures" / f"{name}.json"
    with files.replacing(described) as beside:
        beside.write_text(json.dumps({**config, "text_cfg": tower}))
    open_clip.add_model_config(described)
    return name, word_pieces(vocabulary, length) if own else None


def word_pieces(vocabulary: str, length: int) -> Tokenizer:
    """BERT's lower-case word pieces between [bos] and [eos], filled up with zeros, and [CLS] at the end.

    Wang et al. 2025 (Double Visual Defense), whose checkpoints name the vocabulary as `vocab_path`.
    """
    if find_spec("tokenizers") is None:
        raise UsageError("the tokenizer of this model needs tokenizers: pip install 'vitattack[transformers]'")
    from tokenizers import Tokenizer as Pieces
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    numbers = {word: number for number, word in enumerate(vocabulary.split("\n")) if word}
    missing = [word for word in ("[bos]", "[eos]", "[CLS]", UNKNOWN) if word not in numbers]
    if missing:
        raise UsageError(f"{VOCABULARY} has no {missing[0]}: fetch it again")
    pieces: Any = Pieces(WordPiece(numbers, unk_token=UNKNOWN))
    pieces.normalizer, pieces.pre_tokenizer = BertNormalizer(lowercase=True), BertPreTokenizer()

    def tokenize(texts: Sequence[str]) -> Tensor:
        rows = []
        for text in texts:
            row = [numbers["[bos]"], *pieces.encode(text, add_special_tokens=False).ids, numbers["[eos]"]]
            if len(row) > length - 1:
                row = [*row[: length - 2], numbers["[eos]"]]
            rows.append([*row, *[0] * (length - 1 - len(row)), numbers["[CLS]"]])
        return torch.tensor(rows)

    return tokenize


def _read(path: Path) -> str:
    try:
        if files.no_pipe(path).stat().st_size > LARGEST[path.name]:
            raise UsageError(f"'{path}' is too large for what it should be: fetch it again")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read '{path}' ({text_failure(error)}): fetch the whole repository") from error
