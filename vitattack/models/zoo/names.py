"""Checks of a model's name that need no torch: a typo or a missing file is answered at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from vitattack.core.errors import UsageError
from vitattack.core.registry import close_matches, did_you_mean
from vitattack.core.words import names_a_file
from vitattack.models.architectures.names import check_architecture
from vitattack.models.hugging_face.folder import names_a_folder, read_model_folder, require_transformers
from vitattack.models.hugging_face.repository import PREFIXES as HF_PREFIXES
from vitattack.models.hugging_face.repository import repository
from vitattack.models.normalise import NORMALISERS, parse_normaliser
from vitattack.models.user_code import check_code, parse_code
from vitattack.models.weights.file_kind import ELSEWHERE, PROGRAMS, FileKind, file_kind, refuse_other_frameworks
from vitattack.models.weights.sources import SUFFIXES
from vitattack.models.zoo.catalogue import zoo_entries, zoo_entry
from vitattack.models.zoo.entry import ZooEntry, weights_to_fetch
from vitattack.models.zoo.file_options import FileOptions, parse_size
from vitattack.models.zoo.other_texts import takes_texts, with_texts
from vitattack.models.zoo.renamed import refuse_former_id

ModelKind = Literal["zoo", "timm", "hub", "folder", "code", "file"]
ATTENTION = "attn_implementation"  # the one argument that a folder takes
HUB_PREFIXES = ("timm:", *HF_PREFIXES)
MUCH_ALIKE = 0.7  # of two names, so that a misspelt attack is not taken for a model


def check_model_name(
    text: str, options: FileOptions = FileOptions(), *, attacks: Iterable[str] | None = None
) -> ModelKind:
    """Return the kind of model that a text names, or raise a UsageError that says what is wrong with the name.

    Zoo entries must have weights and an architecture that can be built, checkpoint files must exist, and the options
    must fit the kind. Given `attacks`, the name of an attack in place of the model is recognised as such.
    """
    known = zoo_entries()
    refuse_former_id(text, known)
    if text in known:
        _refuse_options(text, options, taken=("unsafe_pickle", "arch_kwargs"))
        with_texts(known[text], options.arch_kwargs)
        weights_to_fetch(known[text])
        check_buildable(known[text])
        if takes_texts(known[text]):
            check_architecture(str(known[text].arch))  # before gigabytes are fetched
        return "zoo"
    if text.startswith("timm:"):
        _refuse_options(text, options)
        return "timm"
    if text.startswith(HF_PREFIXES):
        repository(text)
        _check_folder_options(text, options)
        return "hub"
    if names_a_folder(text):
        _check_folder_options(text, options)
        if read_model_folder(Path(text)).kind == "transformers":
            require_transformers(text)
        return "folder"
    if parse_code(text) is not None and not names_a_file(text):
        _check_code(text, options)
        return "code"
    if (
        text.endswith((*SUFFIXES, *ELSEWHERE))
        or ("/" in text and text.partition("/")[0] not in _shelves(known))
        or names_a_file(text)
    ):
        check_checkpoint_file(Path(text), options)
        return "file"
    raise UsageError(_unknown_model(text, known, list(attacks or ())))


def looks_like_model(text: str) -> bool:
    """Whether a text can only be meant as the name of a model: an entry of the zoo, a name of a hub, a folder or a file."""
    named = text.startswith(HUB_PREFIXES) or text.endswith(SUFFIXES) or names_a_file(text) or names_a_folder(text)
    return named or text in zoo_entries() or parse_code(text) is not None


def refuse_misspelt_model(text: str, attacks: Iterable[str]) -> None:
    """Raise a UsageError if a word among attacks is none, and much like the name of a model."""
    if not text.replace("-", "").replace("/", "").isalnum() or text in attacks or close_matches(text, attacks):
        return
    if close_matches(text, zoo_entries(), MUCH_ALIKE):
        raise UsageError(did_you_mean("model or attack", text, zoo_entries()))


def options_by_model(models: Sequence[str], options: FileOptions) -> dict[str, FileOptions]:
    """The file options that concern each of several models: all for checkpoint files, for zoo entries trust and texts."""
    known = zoo_entries()
    files = [text for text in models if not (text in known or text.startswith(HUB_PREFIXES) or names_a_folder(text))]
    if options.model_from is not None and len(files) > 1:
        raise UsageError(
            "--model-from is for one checkpoint file, and several are named: name FILE.py:NAME in their place"
        )
    trust = FileOptions(unsafe_pickle=options.unsafe_pickle)  # the one option that zoo entries take, too
    texts = replace(trust, arch_kwargs=options.arch_kwargs)
    clip = [text for text in models if text in known and takes_texts(known[text])]
    if not files and options != (texts if clip else trust):
        raise UsageError("--arch and its like describe a checkpoint file, and none is named: drop them")
    own = {
        **dict.fromkeys(files, options),
        **dict.fromkeys(known, trust),
        **dict.fromkeys(() if files else clip, texts),
    }
    return {text: own.get(text, FileOptions()) for text in models}


def check_buildable(entry: ZooEntry) -> None:
    """Raise a UsageError for an entry whose architecture this version does not have."""
    if entry.arch is None:
        raise UsageError(f"'{entry.id}' cannot be built by this version ({entry.notes}): attack another model")


def check_checkpoint_file(path: Path, options: FileOptions) -> None:
    """Raise a UsageError if the file does not exist or the options do not say how to read it."""
    if not names_a_file(str(path)):
        raise UsageError(f"weights file '{str(path)[:80]}' does not exist: check the path, or name a model of the zoo")
    refuse_other_frameworks(path)
    kind = file_kind(path)
    if kind.kind in PROGRAMS:
        _check_program(path, kind, options)
        return
    if options.like is not None:
        check_buildable(zoo_entry(options.like))
        if options != FileOptions(like=options.like, unsafe_pickle=options.unsafe_pickle):
            raise UsageError(
                f"--like {options.like} says all there is to say about '{path.name}': drop the other options"
            )
        return
    if options.model_from is not None:
        check_code(options.model_from)
        if options.arch is not None:
            raise UsageError("--model-from and --arch both name the architecture: give one of them")
    elif options.arch is None:
        raise UsageError(
            f"'{path.name}' does not say its architecture: add --arch, such as vit_small_patch16_224, "
            "or --model-from FILE.py:make_model for a class of your own"
        )
    else:
        check_architecture(options.arch)
    check_normaliser(path.name, options)
    options.architecture_arguments()


def is_program(text: str) -> bool:
    """Whether a model is a file that runs code when it is read."""
    return names_a_file(text) and file_kind(Path(text)).kind in PROGRAMS


def runs_code(text: str, options: Mapping[str, object]) -> bool:
    """Whether loading a model runs code that its text or its options name."""
    return "model_from" in options or (parse_code(text) is not None and not names_a_file(text)) or is_program(text)


def check_normaliser(name: str, options: FileOptions) -> None:
    """Raise a UsageError unless the options say how a model normalises, and a size that can be read."""
    if options.normalize is None:
        choices = f"{'|'.join(NORMALISERS)} or MEAN,MEAN,MEAN/STD,STD,STD"
        raise UsageError(f"'{name}' does not say how it normalises: add --normalize {choices}")
    parse_normaliser(options.normalize)
    if options.input_size is not None and not options.any_size:
        parse_size(str(options.input_size))


def _check_code(text: str, options: FileOptions) -> None:
    """Refuse code that is not there, and options of checkpoint files."""
    _refuse_options(text, options, taken=("normalize", "arch_kwargs", "num_classes", "input_size"))
    check_code(text)
    if options.normalize is None:
        raise UsageError(
            f"'{text}' does not say how it normalises: add --normalize none if the model does that itself, "
            f"else {'|'.join(name for name in NORMALISERS if name != 'none')} or MEAN,MEAN,MEAN/STD,STD,STD"
        )
    check_normaliser(text, options)
    options.architecture_arguments()


def _check_program(path: Path, kind: FileKind, options: FileOptions) -> None:
    """Refuse a file that runs code when it is read unless the user trusts it, and options that describe tensors."""
    fix = (
        "save model.state_dict() instead"
        if kind.kind == "module"
        else "save the state dict of the model it was made from"
    )
    if not options.unsafe_pickle:
        raise UsageError(
            f"'{path.name}' is {kind.words}, not weights, and reading it could run code: {fix}; "
            "--unsafe-pickle loads it if you trust whoever made it"
        )
    given = [name for name in options.given if name not in ("unsafe_pickle", "normalize", "input_size")]
    if given:
        raise UsageError(
            f"'{path.name}' is {kind.words}, which holds its architecture: drop --{given[0].replace('_', '-')}"
        )
    check_normaliser(path.name, options)


def _check_folder_options(text: str, options: FileOptions) -> None:
    """Refuse options that a folder or a repository states itself."""
    _refuse_options(text, options, taken=("normalize", "arch_kwargs", "input_size"))
    if options.input_size is not None and not options.any_size:
        raise UsageError(f"'{text}' states the size of its images itself: drop --input-size, or write --input-size any")
    if options.normalize is not None:
        parse_normaliser(options.normalize)
    odd = next((key for key in options.arch_kwargs if key != ATTENTION), None)
    if odd is not None:
        raise UsageError(
            f"'{text}' states its architecture itself, and --arch-kwargs may only choose its attention kernel: write "
            f'\'{{"{ATTENTION}": "eager"}}\''
        )


def _refuse_options(text: str, options: FileOptions, taken: tuple[str, ...] = ()) -> None:
    given = [name for name in options.given if name not in taken]
    if given:
        raise UsageError(f"--{given[0].replace('_', '-')} describes a checkpoint file, '{text}' is none: drop it")


def _unknown_model(text: str, known: Iterable[str], attacks: list[str]) -> str:
    """Word the error for an unknown name; models and attacks stand side by side on a command line."""
    if text in attacks:
        return f"'{text}' is an attack: name the model first, as in vitattack eval tiny-vit {text}"
    models = [*known, "timm:ARCH.TAG", "hf:OWNER/NAME", "FOLDER", "FILE.py:NAME", "FILE.safetensors"]
    if not close_matches(text, models) and close_matches(text, attacks):
        return did_you_mean("model or attack", text, attacks)
    return did_you_mean("model", text, models)


def _shelves(known: Iterable[str]) -> set[str]:
    """The part before the slash of ids, such as rb and ares."""
    return {name.partition("/")[0] for name in known if "/" in name}
