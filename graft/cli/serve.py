"""`graft serve`: the OpenAI-compatible server."""

import gc
import os
import sys
from dataclasses import dataclass, fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from graft.cli.options import (
    CONTEXT,
    DISK_CACHE,
    AnswerPool,
    ModelOptions,
    document_tokens,
    takes_options,
)
from graft.cli.show import Spinner
from graft.documents.formats import FORMATS
from graft.errors import InputError
from graft.home import home

if TYPE_CHECKING:
    from graft.server.settings import ServerSettings

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MEGABYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ModelOptions, AnswerPool):
    """Address, access and limits of the server."""

    model: Annotated[
        str | None,
        typer.Argument(help="Known name, hub id, folder or GGUF file; see `graft models`."),
    ] = None
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 for the whole network.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free port.")] = 8000
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Accept only requests with this key; repeatable. Other users of the machine can "
            "see it; GRAFT_API_KEY (keys separated by commas) is safer.",
        ),
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name that clients may use, as well as localhost; repeatable. With it, or on "
            "a loopback address, the server refuses other host names.",
        ),
    ] = None
    served_model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the model in the API.")
    ] = None
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Documents that answer every chat: a file, a folder or a quoted pattern; "
            f"repeatable. Formats: {FORMATS}.",
        ),
    ] = None
    preload: Annotated[
        bool,
        typer.Option(
            "--preload",
            help="Prefill the corpus before the first request; without API keys its KV cache is "
            "also kept on disk, for the next start.",
        ),
    ] = False
    corpora_folder: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Folder that keeps uploaded corpora for the next start; 'none' keeps them in "
            "memory. By default a folder of the port, in Graft's own.",
        ),
    ] = None
    context: CONTEXT = "full"
    max_batch: Annotated[int, typer.Option(min=1, help="Maximum requests running at once.")] = 8
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Maximum requests queued; others get status 429.")
    ] = 64
    timeout: Annotated[float, typer.Option(min=0.1, help="Maximum seconds of a request.")] = 600.0
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds to finish running requests on shutdown.")
    ] = 20.0
    max_body: Annotated[float, typer.Option(metavar="MB", help="Maximum size of a request.")] = 16.0

    def settings(self) -> "ServerSettings":
        """The settings of the server; InputError for a wrong value."""
        from graft.cli.resident import options_of
        from graft.documents import read_documents
        from graft.server.settings import ServerSettings

        named = [key for key in os.environ.get("GRAFT_API_KEY", "").split(",") if key]
        keys = tuple(self.api_key or named)
        if not all(key.strip() and key.isascii() for key in keys):
            raise InputError("an API key must be ASCII and not empty")
        if self.preload and not self.corpus:
            raise InputError("--preload needs a corpus; name files with --corpus")
        with Spinner("reading the corpus"):
            corpus = tuple(read_documents(self.corpus or []))
        return ServerSettings(
            options=options_of(self, self.context),
            name=self.served_model_name,
            api_keys=keys,
            hosts=self.hosts(),
            corpus=corpus,
            corpora_folder=self.kept_corpora(),
            document_tokens=document_tokens(self.context),
            max_waiting=self.max_waiting,
            timeout=self.timeout,
            grace=self.grace,
            max_body=int(self.max_body * MEGABYTE),
        )

    def kept_corpora(self) -> Path | None:
        """The folder of uploaded corpora; none for a port that is another one at every start."""
        if self.corpora_folder:
            return None if self.corpora_folder == "none" else Path(self.corpora_folder)
        return home() / "corpora" / str(self.port) if self.port else None

    def hosts(self) -> tuple[str, ...]:
        """Host names to accept; empty: any."""
        named = tuple(self.allowed_host or ())
        if not all(name.strip() and not set(name) & set("/:@ ") for name in named):
            raise InputError("an allowed host is a name such as graft.example.org, without a port")
        if not named and not is_loopback(self.host):
            return ()
        return tuple(dict.fromkeys((*LOOPBACK, self.host, *named)))


@takes_options
def serve(
    call: typer.Context,
    *,
    options: ServeOptions,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML with these options by name, and `model`; the command line overrides it.",
        ),
    ] = None,
) -> None:
    """Serve a model with an OpenAI-compatible API.

    Example: graft serve smollm2-135m --port 8000 --draft auto
    """
    if config:
        options = replace(options, **read_config(config, call))
    # Wrong options are refused before torch is imported and a model is loaded.
    options.check()
    settings, pool = options.settings(), options.pool_options()
    options.locate()
    try:
        from graft.server.preload import preload
        from graft.server.run import listen, run_server
    except ImportError as error:
        raise InputError(
            f"the server needs {error.name}; install it: pip install 'graftlm[server]'"
        ) from None
    if not is_loopback(options.host) and not settings.api_keys:
        print("warning: the server accepts requests without an API key; set one", file=sys.stderr)
    listening = listen(options.host, options.port)
    disk_cache = DISK_CACHE if options.preload else 0
    engine = options.load_engine(max_batch=options.max_batch, disk_cache=disk_cache, pool=pool)
    if options.preload:
        with Spinner("preload") as spinner:
            whole = preload(engine, settings, spinner.update)
        if not whole:
            print("nothing to preload: each question selects other passages", file=sys.stderr)
    gc.freeze()  # what is loaded stays; a full collection would hold up requests for 0.1 s
    run_server(engine, settings, listening)


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return host in LOOPBACK or ip_address(host).is_loopback
    except ValueError:
        return False


def read_config(file: Path, context: typer.Context) -> dict[str, Any]:
    """The options of a YAML file that the command line does not give; dashes may be underscores."""
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot read {file}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise InputError(f"{file} must hold options, one `name: value` a line")
    kinds = {field.name: field.type for field in fields(ServeOptions)}
    options = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in kinds:
            raise InputError(f"{file} has an unknown option {key!r}")
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            options[name] = _checked(f"{file}: {name}", kinds[name], value)
    return options


def _checked(where: str, kind: Any, value: Any) -> Any:  # noqa: ANN401 (values of any option)
    """The value as the option's type; InputError if it is outside the range."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    shape, option = get_args(kind)
    if "list" in str(shape) and not isinstance(value, list):
        value = [value]
    try:
        config = ConfigDict(coerce_numbers_to_str=True)  # a context length of 8192, as of 8k
        value = TypeAdapter(shape, config=config).validate_python(value)
    except ValidationError as error:
        raise InputError(f"{where}: {error.errors()[0]['msg']}") from None
    if option.min is not None and value is not None and value < option.min:
        raise InputError(f"{where} must be at least {option.min}")
    return value
