"""The victim: the model under attack, from pixels in [0,1] to logits, with its normalisation inside."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitattack.core.errors import UsageError, VitattackError, first_line
from vitattack.models.base import Attackable
from vitattack.models.checkpointing import without_checkpointing
from vitattack.models.digest import buffers_digest, fingerprint

# Images that were normalised and back leave the box by rounding errors; more than this is another scale.
PIXEL_TOLERANCE = 1e-4
SIZES_TRIED = 24  # before a run, of images that differ in size


class Victim(Attackable):
    """A classifier with its normalisation: (B, 3, H, W) in [0,1] -> (B, num_classes) logits."""

    mean: Tensor
    std: Tensor
    known_random = False  # set by `marked_random` for a while
    input_height: int | None = None  # where images are not square; then `input_size` is their width
    any_size = False  # whether images may differ in size; `size` is then one that it takes

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str,
        num_classes: int,
        input_size: int | tuple[int, int],  # a side, or height and width
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        transform: str = "none",
        channels: int = 3,
        any_size: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.name = name
        self.num_classes = num_classes
        height, width = input_size if isinstance(input_size, tuple) else (input_size, input_size)
        self.input_size = width
        if height != width:  # a square model has no such attribute: its digest is as it was
            self.input_height = height
        if any_size:  # likewise
            self.any_size = True
        self.transform = transform
        self.channels = channels
        self.normalises = mean is not None
        self.register_buffer("mean", torch.tensor(mean or (0.0,)).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std or (1.0,)).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return _logits(self.model((x - self.mean) / self.std if self.normalises else x), self.name)

    @property
    def is_random(self) -> bool:
        return self.known_random

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images it takes."""
        return self.input_height or self.input_size, self.input_size

    @property
    def size_in_words(self) -> str:
        return in_words(self.size)

    def takes(self, size: Sequence[int]) -> bool:
        """Whether images of this height and width may be given to it."""
        return self.any_size or tuple(size) == self.size

    def grey(self, count: int = 1) -> Tensor:
        """Return grey images of the right shape, dtype and device, for trial forwards."""
        shape = (count, self.channels, *self.size)
        return torch.full(shape, 0.5, device=self.mean.device, dtype=self.mean.dtype)


def in_words(size: tuple[int, int]) -> str:
    """A height and width as users read it; the side of a square."""
    height, width = size
    return f"{width}" if height == width else f"{height} x {width}"


class View(Attackable):
    """A modified model that gradients are taken from; the plain victim gives its verdicts, at one more forward."""

    verdict_forwards = 1

    def __init__(self, victim: Victim) -> None:
        super().__init__()
        self.victim = victim
        self.name, self.num_classes = victim.name, victim.num_classes

    @property
    def is_random(self) -> bool:
        return self.victim.is_random

    def verdict(self, x: Tensor, logits: Tensor) -> Tensor:
        return self.verdict_again(x)

    def verdict_again(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            plain: Tensor = self.victim(x.to(self.victim.mean.dtype))
        return plain


def _logits(out: object, name: str) -> Tensor:
    """Return an output tensor, or the `logits` of an output object as Hugging Face models return it."""
    logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
    if not isinstance(logits, Tensor):
        raise UsageError(f"model '{name}' returns {type(out).__name__}, not a tensor of logits: wrap it")
    return logits


def as_victim(module: nn.Module, x: Tensor, name: str | None = None) -> Victim:
    """Wrap a module as a victim; its number of classes is read off the logits of one image of `x`."""
    if isinstance(module, Victim):
        return module
    name = name or type(module).__name__
    check_module(module)
    image, given = x[:1].clone(), x[:1].clone()
    with frozen(module), torch.no_grad():
        logits = _logits(module(given), name)
    if not torch.equal(given.nan_to_num(), image.nan_to_num()):
        raise UsageError(
            f"model '{name}' changes its input in place: let its forward work on a copy, as in x = x - mean"
        )
    if logits.dim() != 2:
        raise UsageError(
            f"the model returns {tuple(logits.shape)} for one image, not (1, classes): wrap it so that it gives logits"
        )
    size = int(x.shape[-2]), int(x.shape[-1])
    return Victim(module, name=name, num_classes=logits.shape[1], input_size=size, channels=x.shape[1])


def check_module(module: nn.Module) -> None:
    """Refuse what is no module, and weights of another precision than fp32, in which verdicts are given."""
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"the model is a {type(module).__name__} and no module, so that its parameters cannot be found: "
            "put them into a torch.nn.Module whose forward it is"
        )
    if any(tensor.is_inference() for tensor in [*module.parameters(), *module.buffers()]):
        raise UsageError(
            "the model was made in inference_mode, where autograd cannot follow its weights: make it outside"
        )
    for parameter in module.parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise UsageError(
                f"the model has {kind} weights, and verdicts are those of the fp32 model: call .float() first"
            )


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Put a module in eval mode without parameter gradients, on one attention kernel, without checkpointing.

    Everything is restored afterwards.
    """
    training = [m for m in module.modules() if m.training]
    learning = [p for p in module.parameters() if p.requires_grad]
    fastpath = torch.backends.mha.get_fastpath_enabled()
    for submodule in training:
        submodule.training = False
    for parameter in learning:
        parameter.requires_grad_(False)
    # The fused inference path of nn.MultiheadAttention rounds differently from the one that gradients take.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with without_checkpointing():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        for submodule in training:
            submodule.training = True
        for parameter in learning:
            parameter.requires_grad_(True)


def model_digest(module: nn.Module, *, parameters: bool = True) -> str:
    """Return the sha256 of the function a model is; `parameters=False` hashes its buffers alone."""
    return fingerprint(module).digest if parameters else buffers_digest(module)


def check_pixels(x: Tensor, what: str) -> tuple[Tensor, int]:
    """Return the images clamped to [0,1] and how many were not inside; refuse more than rounding errors."""
    if not torch.isfinite(x).all():
        raise UsageError(f"{what} hold NaN or infinite pixels: repair the images")
    low, high = float(x.min()), float(x.max())
    if low < -PIXEL_TOLERANCE or high > 1 + PIXEL_TOLERANCE:
        fix = "divide by 255" if high > 2 and low >= 0 else "undo their normalisation, the model does its own"
        raise UsageError(f"{what} have pixels from {low:.3g} to {high:.3g}, attacks need [0,1]: {fix}")
    outside = ((x < 0) | (x > 1)).flatten(1).any(1)
    return (x.clamp(0, 1), int(outside.sum())) if bool(outside.any()) else (x, 0)


def check_labels(y: Tensor, victim: Victim, whose: str = "") -> None:
    """Refuse labels that are no classes of the victim."""
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= victim.num_classes:
        wrong = high if high >= victim.num_classes else low
        raise UsageError(f"label {wrong}{whose} is no class of '{victim.name}' (0 to {victim.num_classes - 1})")


def check_forward(victim: Victim) -> None:
    """Try one forward of grey images and check the shape and finiteness of the logits before any work is spent."""
    try:
        with frozen(victim), torch.no_grad():
            logits = victim(victim.grey(2))
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"model '{victim.name}' fails on {victim.size_in_words} px images: {reason}") from error
    if logits.dim() != 2 or logits.shape[1] != victim.num_classes:
        raise UsageError(
            f"model '{victim.name}' returns {tuple(logits.shape)} for 2 images, not (2, {victim.num_classes}): "
            "correct num_classes in its entry"
        )
    if not torch.isfinite(logits).all():
        raise VitattackError(
            f"model '{victim.name}' gives NaN for a grey image: the weights are broken, fetch them again"
        )


def check_sizes(victim: Victim, sizes: Sequence[tuple[int, int]]) -> None:
    """Try the victim on grey images of several sizes, of at most some, the smallest and the largest among them."""
    step = max(1, math.ceil((len(sizes) - 1) / SIZES_TRIED))
    for height, width in dict.fromkeys([*sizes[::step], *sizes[-1:]]):
        image = victim.grey()[..., :1, :1].expand(-1, -1, height, width).clone()
        with failing_on((height, width), victim.name), frozen(victim), torch.no_grad():
            victim(image)


@contextmanager
def failing_on(size: tuple[int, int], name: str) -> Iterator[None]:
    """Say of a forward that fails that it does so on images of one of several sizes."""
    try:
        yield
    except (RuntimeError, AssertionError, ValueError, IndexError) as error:
        reason = first_line(error) or type(error).__name__
        raise UsageError(
            f"the images differ in size, and '{name}' fails on one of {size[0]} x {size[1]} px ({reason}): bring them to "
            "one size, for folders by --transform, or leave that size out"
        ) from error
