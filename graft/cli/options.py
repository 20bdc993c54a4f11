"""Options of a command, each written once, as a field of a dataclass; those of `run`, `chat`,
`ask` and `serve`."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graft.cli.show import Waiting
from graft.errors import InputError

if TYPE_CHECKING:
    from graft import Engine, SamplingParams
    from graft.documents import Document
    from graft.verify.rapid import Shift

DISK_CACHE = 4_000_000_000  # bytes
DTYPES = ("auto", "fp32", "bf16", "fp16", "int8")
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
)


@dataclass(frozen=True, kw_only=True)
class DocumentOptions:
    """What to answer from."""

    doc: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Text, Markdown, HTML or PDF to answer from: a file, a folder or a quoted pattern "
            "such as 'docs/**/*.pdf'; repeatable.",
        ),
    ] = None
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Refuse documents longer than the model reads, instead of selecting passages.",
        ),
    ] = False
    cache: Annotated[
        bool,
        typer.Option(
            help="Keep what was read of the documents on disk, so that the next question about "
            "them starts at once; see `graft cache`.",
        ),
    ] = True


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, how it runs, and who guesses for it."""

    model: Annotated[
        str | None,
        typer.Option(help="Known name, hub id, folder or GGUF file; see `graft models`."),
    ] = None
    context_length: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS",
            help="Of prompt and answer, such as 32k: fewer than the model reads, or more, by "
            "stretching its positions (YaRN).",
        ),
    ] = None
    draft: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who guesses ahead: auto, copy, pld, igpg, plain; rapid (the model itself, from "
            "retrieved passages of a long prompt), window, magicdec, triforce (the model itself "
            "over a part of a long context); with --draft-model also sd, sd-tree, rapid-up, "
            "with --head head, eagle2, longspec, with either casd, rasd-pld; store:FOLDER and "
            "rest:FOLDER (a datastore of `graft index`); several joined by +, such as "
            "eagle2+copy+store:FOLDER.",
        ),
    ] = "auto"
    draft_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A smaller model with the same tokenizer that guesses ahead; auto then uses it "
            "where it pays.",
        ),
    ] = None
    draft_device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="Where the draft model runs, if not beside the model."),
    ] = None
    retriever: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What finds the passages that rapid reads: bm25, static, dense or hybrid.",
        ),
    ] = "bm25"
    verifier: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What is kept of a draft: walk (the same text), rejection (the same "
            "distribution); with --draft rapid, rapid-up or sd also rapid, rapid-phat: not "
            "lossless, the model is pulled towards the drafter.",
        ),
    ] = "walk"
    eta: Annotated[
        float | None,
        typer.Option(min=0, help="How far, with --verifier rapid or rapid-phat; 10 if not given."),
    ] = None
    head: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="A draft head trained for the model (`graft train`), which auto then uses where "
            "it pays; auto: those installed for it; none.",
        ),
    ] = "auto"
    dtype: Annotated[
        str,
        typer.Option(help="fp32, bf16, fp16, int8 (weights only; needs torchao) or auto."),
    ] = "auto"
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ... or auto.")] = "auto"
    invariant: Annotated[
        bool,
        typer.Option("--invariant", help="Drafted = plain to the last bit in any dtype; slower."),
    ] = False
    kv_cache: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            min=0,
            help="Memory that keys and values may take; on a GPU it is taken at once, by default "
            "as much as two whole contexts need.",
        ),
    ] = None

    def load_engine(self, **more: Any) -> "Engine":  # noqa: ANN401 (graft.load's)
        """The engine asked for. What can be refused without loading a model is refused first."""
        if self.dtype not in DTYPES:
            raise InputError(f"unknown dtype {self.dtype!r}; choose from {', '.join(DTYPES)}")
        import graft
        from graft.assemble import check_draft, check_verifier
        from graft.bench.sizes import context_tokens
        from graft.models.checkpoints.pretrained import DEFAULT_MODEL, locate
        from graft.models.heads.load import may_have_head, named_head

        head, context_length = named_head(self.head), context_tokens(self.context_length)
        check_draft(self.draft, draft_model=self.draft_model is not None, head=may_have_head(head))
        check_verifier(self.verifier, self.draft)
        shift = self._shift()
        name = DEFAULT_MODEL if self.model is None else self.model
        for each in (name, self.draft_model):
            if each is not None:
                locate(each)  # downloads show a bar of their own
        with Waiting(f"loading {name} (the first start compiles kernels: about a minute)"):
            return graft.load(
                name,
                draft_model=self.draft_model,
                draft_device=self.draft_device,
                head=head,
                dtype=self.dtype,
                device=self.device,
                context_length=context_length,
                draft=self.draft,
                retriever=self.retriever,
                verifier=self.verifier,
                shift=shift,
                invariant=self.invariant,
                kv_cache=None if self.kv_cache is None else int(self.kv_cache * 1e9),
                **more,
            )

    def _shift(self) -> "Shift | None":
        """How far a verifier pulls; InputError where the one asked for does not."""
        if self.eta is None:
            return None
        from graft.verify.rapid import Shift

        if not self.verifier.startswith("rapid"):
            raise InputError("--eta goes with --verifier rapid or rapid-phat")
        return Shift(eta=self.eta)


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(ModelOptions):
    """How to draw an answer. An option left out (None) has the default of `SamplingParams`."""

    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None
    temperature: Annotated[float | None, typer.Option(help="0 is greedy, the default.")] = None
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to P.")] = None
    top_k: Annotated[int | None, typer.Option(help="Keep the K likeliest tokens; 0: all.")] = None
    min_p: Annotated[
        float | None, typer.Option(help="Drop tokens below P times the likeliest one.")
    ] = None
    repetition_penalty: Annotated[float | None, typer.Option(help="1 is none.")] = None
    presence_penalty: Annotated[float | None, typer.Option(help="0 is none.")] = None
    frequency_penalty: Annotated[float | None, typer.Option(help="0 is none.")] = None
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same text with every draft.")
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text; repeatable.")
    ] = None

    @property
    def on_disk(self) -> bool:
        """Whether some of what is read stays on disk."""
        return False

    def sampling(self, **changes: Any) -> "SamplingParams":  # noqa: ANN401 (values of any option)
        """The sampling parameters asked for, `changes` on top; InputError for a bad value."""
        from graft import SamplingParams

        given = {name: getattr(self, name) for name in SAMPLING if getattr(self, name) is not None}
        return SamplingParams(**{"stop": tuple(self.stop or ()), **given, **changes})

    def load(self, *, remembers: bool = True) -> "Engine":
        """The engine asked for, one that `remembers` what it read or reads everything anew."""
        return self.load_engine(
            max_batch=1,
            prefix_cache=None if remembers else 0,
            disk_cache=DISK_CACHE if remembers and self.on_disk else 0,
        )


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(SamplingOptions, DocumentOptions):
    """Those of `run` and `chat`."""

    @property
    def on_disk(self) -> bool:
        """Whole documents do, unless told otherwise."""
        return bool(self.cache and self.doc)

    def documents(self) -> "list[Document]":
        """Read every --doc."""
        from graft.documents import read_documents

        with Waiting("reading the documents"):
            return read_documents(self.doc or [])


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command whose `options` is a dataclass one command-line option per field of it."""
    shown = inspect.signature(command)
    kind = shown.parameters["options"].annotation
    own = [each for each in shown.parameters.values() if each.name != "options"]
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=field.type,
        )
        for field in fields(kind)
    ]

    @wraps(command)
    def with_options(**given: Any) -> None:  # noqa: ANN401 (values of any option)
        chosen = {field.name: given.pop(field.name) for field in fields(kind)}
        command(options=kind(**chosen), **given)

    parameters = sorted([*own, *shared], key=lambda each: each.kind)
    with_options.__signature__ = shown.replace(parameters=parameters)
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options
