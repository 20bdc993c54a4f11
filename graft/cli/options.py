"""Command-line options as fields of dataclasses; those that `run`, `chat`, `ask`, `serve` share."""

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graft.cli.method_options import MethodOptions, parse_size
from graft.cli.show import Spinner
from graft.documents.formats import FORMATS
from graft.documents.prompt import AUTO_TOKENS
from graft.errors import InputError

if TYPE_CHECKING:
    from graft import Engine, SamplingParams
    from graft.documents import Document
    from graft.match.pool import PoolOptions

# Options and arguments of several commands
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
COLOR = Annotated[bool, typer.Option("--color", help="Colour tokens by the source of their draft.")]
SERVER = Annotated[
    bool,
    typer.Option(
        help="Use the loaded model of a `graft serve` with the same model and options on this "
        "machine, if one runs.",
    ),
]
QUESTION = Annotated[
    str | None, typer.Argument(help="The question; - or nothing reads standard input.")
]
CONTEXT = Annotated[
    str,
    typer.Option(
        metavar="full|auto",
        help=f"full: documents are used whole if they fit the model's context. auto: of documents "
        f"with more than {AUTO_TOKENS:,} tokens, the passages that match the question best; the "
        "first token comes sooner.",
    ),
]
DISK_CACHE = 4_000_000_000  # bytes
DTYPES = ("auto", "fp32", "bf16", "fp16", "int8", "gguf")
KV_CACHE_DTYPES = ("auto", "fp32", "bf16", "fp16", "fp8")
DEVICE = re.compile(r"auto|(cpu|cuda)(:\d+)?")


@dataclass(frozen=True, kw_only=True)
class DocumentOptions:
    """The documents to answer from."""

    doc: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Document to answer from: a file, a folder or a quoted pattern such as "
            f"'docs/**/*.pdf'; repeatable. Formats: {FORMATS}.",
        ),
    ] = None
    context: CONTEXT = "full"
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Refuse documents longer than the model's context, instead of selecting passages.",
        ),
    ] = False
    cache: Annotated[
        bool,
        typer.Option(
            help="Keep the documents' KV cache on disk, so that the next question about them "
            "needs no prefill; see `graft cache`.",
        ),
    ] = True

    def document_tokens(self) -> int | None:
        """See `document_prompt`."""
        return document_tokens(self.context)


def document_tokens(context: str) -> int | None:
    """Of --context; InputError for an unknown one."""
    limits = {"full": None, "auto": AUTO_TOKENS}
    if context not in limits:
        raise InputError(f"unknown context {context!r}; choose full or auto")
    return limits[context]


@dataclass(frozen=True, kw_only=True)
class AnswerPool:
    """Answers as a source of drafts for later requests; the options of `serve` and `chat`."""

    pool: Annotated[
        str,
        typer.Option(
            metavar="off|memory|FOLDER",
            help="Draft from earlier answers to requests with the same API key and cache salt: "
            "off, memory (forgotten at the end) or a folder that keeps them.",
        ),
    ] = "off"
    pool_tokens: Annotated[
        str, typer.Option(metavar="TOKENS", help="Maximum tokens of the pool, 20 bytes each.")
    ] = "4m"
    pool_prompts: Annotated[
        bool, typer.Option("--pool-prompts", help="Keep prompts too, not only answers.")
    ] = False

    def pool_options(self) -> "PoolOptions | bool":
        """For graft.load."""
        size = parse_size("--pool-tokens", self.pool_tokens, "4m")
        if self.pool == "off":
            return False
        from graft.match.pool import PoolOptions

        folder = None if self.pool == "memory" else self.pool
        return PoolOptions(folder, max_tokens=size, prompts=self.pool_prompts)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The model, how it runs, and its drafter."""

    model: Annotated[
        str | None,
        typer.Option(help="Known name, hub id, folder or GGUF file; see `graft models`."),
    ] = None
    context_length: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS",
            help="Maximum tokens of prompt and answer, such as 32k; more than the model was "
            "trained for scales its positions (YaRN).",
        ),
    ] = None
    draft: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Drafter: auto, copy, pld, igpg, plain (no drafting); pool (with --pool); rapid "
            "(the model itself on retrieved passages of a long prompt); window, magicdec, triforce "
            "(the model itself on a part of its KV cache); with --draft-model also sd, sd-tree, "
            "rapid-up; with --head also head, eagle3, eagle2, longspec; mtp (the MTP layer of the "
            "model's checkpoint); with any of these casd, casd-prompt, rasd-pld, rasd-rest:FOLDER; "
            "store:FOLDER and rest:FOLDER (a datastore of `graft index`); several joined by +, "
            "such as eagle3+copy+store:FOLDER.",
        ),
    ] = "auto"
    draft_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Draft model: a smaller model with the same tokenizer; auto uses it where it "
            "saves time.",
        ),
    ] = None
    draft_device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="Device of the draft model, if not the model's own."),
    ] = None
    head: Annotated[
        str,
        typer.Option(
            metavar="HEAD",
            help="Draft head trained for the model (`graft train`): a folder, the name of an "
            "installed one or a hub id; auto: one installed for it or its MTP layer; none.",
        ),
    ] = "auto"
    dtype: Annotated[
        str,
        typer.Option(
            help="fp32, bf16, fp16, int8 (weights only; needs torchao), gguf (packed) or auto."
        ),
    ] = "auto"
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ... or auto.")] = "auto"
    invariant: Annotated[
        bool,
        typer.Option(
            "--invariant",
            help="Make 16-bit output independent of drafting where it is not; slower.",
        ),
    ] = False
    kv_cache: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            min=0,
            help="Memory for the KV cache; a GPU allocates it at start, by default for two full "
            "contexts.",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str,
        typer.Option(
            metavar="DTYPE",
            help="auto, or on the CPU fp32, bf16, fp16, fp8: less memory for long contexts.",
        ),
    ] = "auto"

    def context_tokens(self) -> int | None:
        """--context-length as a number."""
        if self.context_length is None:
            return None
        return parse_size("--context-length", self.context_length, "32k")

    def locate(self) -> str:
        """Find or download the models without importing torch; the name of the target."""
        from graft.models.checkpoints.pretrained import DEFAULT_MODEL, locate

        name = DEFAULT_MODEL if self.model is None else self.model
        for each in (name, self.draft_model):
            if each is not None:
                locate(each)  # downloads show a progress bar
        return name


@dataclass(frozen=True, kw_only=True)
class ModelOptions(MethodOptions, LoadOptions):
    """The model, its drafter and the methods' numbers."""

    def check(self) -> None:
        """Raise InputError for a wrong value; imports neither torch nor numba."""
        from graft.assemble.presets import check_draft, check_verifier
        from graft.models.heads.installed import may_have_head, named_head

        if self.dtype not in DTYPES:
            raise InputError(f"unknown dtype {self.dtype!r}; choose from {', '.join(DTYPES)}")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            choices = ", ".join(KV_CACHE_DTYPES)
            raise InputError(f"unknown dtype {self.kv_cache_dtype!r}; choose from {choices}")
        for device in (self.device, self.draft_device or "auto"):
            if not DEVICE.fullmatch(device):
                raise InputError(f"unknown device {device!r}; try cpu or cuda")
        if self.draft_device and not self.draft_model:
            raise InputError("--draft-device needs a draft model; name one (--draft-model)")
        has_head = may_have_head(named_head(self.head))
        check_draft(self.draft, draft_model=self.draft_model is not None, head=has_head)
        check_verifier(self.verifier, self.draft)
        self.check_methods()
        for part in self.draft.split("+"):
            if folder := part.partition(":")[2]:
                from graft.match.store_files import read_manifest

                read_manifest(Path(folder))
        self.context_tokens()

    def load_engine(self, **more: Any) -> "Engine":  # noqa: ANN401 (graft.load's)
        """The engine; a model that does not exist is refused before torch is imported."""
        from graft.models.heads.installed import named_head

        name = self.locate()
        with Spinner(f"loading {name} (the first start compiles kernels: about a minute)"):
            import graft

            return graft.load(
                name,
                draft_model=self.draft_model,
                draft_device=self.draft_device,
                head=named_head(self.head),
                dtype=self.dtype,
                device=self.device,
                context_length=self.context_tokens(),
                draft=self.draft,
                invariant=self.invariant,
                kv_cache=None if self.kv_cache is None else int(self.kv_cache * 1e9),
                kv_cache_dtype=self.kv_cache_dtype,
                **self.load_arguments(),
                **more,
            )


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(ModelOptions):
    """How to sample. An option that is not given (None) has the default of `SamplingParams`."""

    max_tokens: Annotated[int | None, typer.Option(help="Maximum length of the answer.")] = None
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
        int | None, typer.Option(help="The same seed gives the same text with every drafter.")
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Stop before this text; repeatable.")
    ] = None

    def check(self) -> None:
        """See ModelOptions; also for numbers that this draft does not use."""
        super().check()
        self.check_used_by(self.draft)

    def sampling(self, **changes: Any) -> "SamplingParams":  # noqa: ANN401 (values of any option)
        """The sampling parameters, with `changes`; InputError for a wrong value."""
        from graft import SamplingParams

        names = [each.name for each in fields(SamplingOptions) if each not in fields(ModelOptions)]
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return SamplingParams(**{**given, **changes})


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(SamplingOptions, DocumentOptions):
    """The options of `run` and `chat`."""

    def check(self) -> None:
        """See SamplingOptions; also for the documents' options."""
        super().check()
        if self.document_tokens() and self.full:
            raise InputError("--full and --context auto contradict each other; choose one")

    def load(self, *, prefix_cache: bool = True, **more: Any) -> "Engine":  # noqa: ANN401
        """The engine, with the documents' KV cache on disk unless the options say otherwise."""
        on_disk = prefix_cache and self.cache and self.doc
        return self.load_engine(
            max_batch=1,
            prefix_cache=None if prefix_cache else 0,
            disk_cache=DISK_CACHE if on_disk else 0,
            **more,
        )

    def documents(self) -> "list[Document]":
        """The text of every --doc."""
        from graft.documents import read_documents

        with Spinner("reading the documents"):
            return read_documents(self.doc or [])


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one command-line option per field of its dataclass parameter `options`."""
    signature = inspect.signature(command)
    kind = signature.parameters["options"].annotation
    own = [each for each in signature.parameters.values() if each.name != "options"]
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
    signed = signature.replace(parameters=parameters)
    setattr(with_options, "__signature__", signed)  # noqa: B010 (functools' type has no such field)
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options
