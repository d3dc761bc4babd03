"""A CLIP model as a classifier: its image tower, and a linear head computed once from texts and then frozen."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.core import files
from vitattack.core.errors import UsageError, first_line
from vitattack.core.progress import in_stage
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable
from vitattack.models.clip.folder import Tokenizer, is_folder, register_folder
from vitattack.models.clip.texts import OPEN_CLIP, read_texts
from vitattack.models.digest import tensor_bytes

TEXTS_AT_ONCE = 64


class ZeroShot(nn.Module):
    """Normalised pixels to cosine similarities with the texts of the classes, times the scale of the logits.

    Before `freeze` it holds both towers, which a checkpoint fills; afterwards the image tower and a linear head.
    With `native_size` it takes images of that size and enlarges them itself (bicubic), so that the budget holds there.
    """

    head: Tensor

    def __init__(self, name: str, class_names: Any = None, prompts: Any = None, native_size: int | None = None) -> None:
        super().__init__()
        open_clip = _open_clip(name)
        self.texts = read_texts(class_names, prompts)
        own: Tokenizer | None = None
        if is_folder(name):
            name, own = register_folder(open_clip, Path(name))
        self._own_tokenizer = own
        config = open_clip.get_model_config(name)
        if config is None:
            raise UsageError(did_you_mean("CLIP architecture", name, open_clip.list_models()))
        if native_size is not None and not (isinstance(native_size, int) and 1 <= native_size <= 8192):
            raise UsageError(
                f"native_size is the side of images in px, not {printable(repr(native_size), 40)}: correct it"
            )
        place = torch.empty(0).device  # shapes alone, where a caller counts
        with _quiet():
            clip: Any = open_clip.create_model(
                name, pretrained=None, load_weights=False, device=place, pretrained_text=False
            )
        self.architecture, self.num_classes = name, len(self.texts.classes)
        self.clip: nn.Module | None = clip
        self.visual: nn.Module = clip.visual
        size: Any = clip.visual.image_size
        self.tower_size = int(size[0] if isinstance(size, tuple | list) else size)
        self.image_size = native_size or self.tower_size
        self.register_buffer("head", torch.zeros(self.num_classes, config["embed_dim"]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.tower_size:
            x = nn.functional.interpolate(x, size=self.tower_size, mode="bicubic", align_corners=False)
        features: Any = self.visual(x)
        return nn.functional.normalize(features, dim=-1) @ self.head.T

    def freeze(self) -> None:
        """Compute the head with the text tower, or take it from the cache, and drop the tower."""
        clip: Any = self.clip
        key = self._key(clip)
        head = _cached(key, tuple(self.head.shape))
        if head is None:
            head = self._embedded(clip)
            _store(key, head)
        self.head.copy_(head * clip.logit_scale.detach().exp())
        if getattr(clip, "logit_bias", None) is not None:
            raise UsageError(
                f"'{self.architecture}' was trained with a bias per pair (SigLIP), which is no classifier: choose another"
            )
        self.clip = self._own_tokenizer = None

    @torch.no_grad()
    def _embedded(self, clip: Any) -> Tensor:
        """One unit vector for each class: the mean over its prompts of unit vectors, normalised."""
        tokenize = self._own_tokenizer or _open_clip(self.architecture).get_tokenizer(self.architecture)
        clip.eval()
        rows = []
        for name in in_stage("embedding class names", self.texts.classes):
            texts = self.texts.of(name)
            pieces = [texts[at : at + TEXTS_AT_ONCE] for at in range(0, len(texts), TEXTS_AT_ONCE)]
            vectors = torch.cat([clip.encode_text(tokenize(piece), normalize=True) for piece in pieces])
            rows.append(nn.functional.normalize(vectors.mean(0), dim=0))
        return torch.stack(rows)

    def _key(self, clip: nn.Module) -> str:
        hasher = hashlib.sha256(repr((self.architecture, self.texts, version("open_clip_torch"))).encode())
        for name, tensor in sorted(clip.state_dict().items()):
            if not name.startswith("visual."):
                hasher.update(name.encode())
                hasher.update(tensor_bytes(tensor))
        return hasher.hexdigest()


def build_zero_shot(name: str, arguments: Mapping[str, Any]) -> ZeroShot:
    """Build `open_clip:NAME`, with random weights and no head yet."""
    try:
        return ZeroShot(name, **arguments)
    except UsageError:
        raise
    except Exception as error:  # open_clip raises whatever breaks first
        reason = printable(first_line(error) or type(error).__name__)
        raise UsageError(
            f"architecture {OPEN_CLIP}{printable(name, 60)} cannot be built ({reason}): check --arch-kwargs"
        ) from error


def filled_part(model: nn.Module) -> nn.Module:
    """The part of a model that a checkpoint fills: of a CLIP classifier, the CLIP model."""
    return model.clip if isinstance(model, ZeroShot) and model.clip is not None else model


def drop_text_tower(model: nn.Module) -> None:
    """Leave of a CLIP classifier what it consists of once its head is there, without computing that."""
    if isinstance(model, ZeroShot):
        model.clip = None


def finish(model: nn.Module) -> dict[str, Any]:
    """Do what is left once the weights are loaded; returns what a record says of it."""
    if not isinstance(model, ZeroShot):
        return {}
    if model.clip is not None:
        model.freeze()
    return {"zero_shot": {**model.texts.record(), "open_clip": version("open_clip_torch")}}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep open_clip from warning that the weights are random, which they are until a checkpoint fills them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _open_clip(name: str) -> Any:
    if find_spec("open_clip") is None:
        raise UsageError(
            f"'{OPEN_CLIP}{printable(name, 60)}' needs open_clip, which is not installed: pip install 'vitattack[clip]'"
        )
    return import_module("open_clip")


def _head_file(key: str) -> Path:
    return files.cache_home() / "clip-heads" / f"{key[:40]}.safetensors"


def _cached(key: str, shape: tuple[int, ...]) -> Tensor | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with suppress(OSError, SafetensorError, KeyError):
        head = load_file(files.no_pipe(_head_file(key)))[key]
        if tuple(head.shape) == shape and torch.allclose(head.norm(dim=1), torch.ones(len(head)), atol=1e-3):
            return head
    return None


def _store(key: str, head: Tensor) -> None:
    from safetensors.torch import save_file

    with suppress(OSError, UsageError):  # a cache that cannot be written only costs time
        files.cache_folder("clip-heads")
        with files.replacing(_head_file(key)) as beside:
            save_file({key: head.contiguous()}, beside)
