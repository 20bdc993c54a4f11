"""Command-line options of the methods' own numbers, which `run`, `chat`, `ask`, `serve`, `bench`
share. An option that is not given (None) has the default of `graft.load`."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from graft.errors import InputError

GAMMA, CONFIDENCE, SHIFT = ("gamma",), ("confidence",), ("eta", "tail", "margin")
RASD = ("rasd_top_k", "rasd_branches", "rasd_length", "rasd_requery")
CASD = ("casd_matches", "casd_length")


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """Verifier, retrieval and the numbers of chains, RAPID, RASD and CASD."""

    retriever: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Retriever of passages for rapid: bm25, static, dense or hybrid.",
        ),
    ] = "bm25"
    retrieved: Annotated[
        str,
        typer.Option(
            metavar="TOKENS",
            help="Tokens of a long prompt that rapid drafts from: a number such as 4k, rapid (the "
            "paper's max(4096, prompt / 24)) or capped (the same, at most a quarter).",
        ),
    ] = "capped"
    gamma: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Tokens of a chain (sd, rapid*, window, magicdec*, triforce*); by default limited "
            "by the step cost, 3 for magicdec*, 6 for triforce*, 10 for rapid-up and with "
            "--verifier rapid or rapid-phat.",
        ),
    ] = None
    confidence: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="sd, rapid, rapid-up: end a chain at the first token below this probability; 0 if "
            "not given.",
        ),
    ] = None
    verifier: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Acceptance rule for drafts: walk (the same text), rejection (the same "
            "distribution); with --draft rapid, rapid-up or sd also rapid, rapid-phat: not "
            "lossless, they shift the model's distribution towards the drafter's.",
        ),
    ] = "walk"
    eta: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1000,
            help="Size of the shift of --verifier rapid or rapid-phat; 10 if not given.",
        ),
    ] = None
    tail: Annotated[
        Literal["drafter", "target"] | None,
        typer.Option(
            help="Tokens that this shift leaves out: those unlikely for the drafter (the default, "
            "as in RAPID's code) or in the shifted target (eq. 9 of its paper).",
        ),
    ] = None
    margin: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1000,
            help="Size of the shift at temperature 0, in logits; 0, the same text, if not given.",
        ),
    ] = None
    rasd_top_k: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10,
            help="rasd-*: keep retrieved branches that start with one of the draft model's K best "
            "tokens; 10 if not given.",
        ),
    ] = None
    rasd_branches: Annotated[
        int | None,
        typer.Option(min=1, max=16, help="rasd-*: retrieved branches; 4 if not given."),
    ] = None
    rasd_length: Annotated[
        int | None,
        typer.Option(min=1, max=32, help="rasd-*: tokens of a branch; 8 if not given."),
    ] = None
    rasd_requery: Annotated[
        bool | None,
        typer.Option(
            help="rasd-*: where retrieval finds nothing, repeat it after the draft model's best "
            "nodes; by default in the prompt, not in a datastore.",
        ),
    ] = None

    casd_matches: Annotated[
        int | None,
        typer.Option(min=1, max=16, help="casd*, copy: matches that are copied; 2 if not given."),
    ] = None
    casd_length: Annotated[
        int | None,
        typer.Option(min=1, max=32, help="casd*, copy: tokens of a copy; 10 if not given."),
    ] = None

    def check_methods(self) -> None:
        """Raise InputError for a wrong value; imports neither torch nor numba."""
        from graft.retrieval.budget import check_budget

        if not self.verifier.startswith("rapid"):
            _refuse(self._given(SHIFT), "--verifier rapid or rapid-phat")
        check_budget(self.retrieved_tokens())
        if self.retriever != "bm25":
            from graft.retrieval.named import check_retriever

            check_retriever(self.retriever)

    def check_used_by(self, draft: str) -> None:
        """Raise InputError for a number that is given and that this draft does not use."""
        from graft.assemble.presets import CHAIN_PRESETS, SAMPLED_PRESETS

        parts = draft.split("+")
        if not set(parts) & set(CHAIN_PRESETS):
            _refuse(self._given(GAMMA), f"--draft {_one_of(CHAIN_PRESETS)}")
        if not set(parts) & set(SAMPLED_PRESETS):
            _refuse(self._given(CONFIDENCE), f"--draft {_one_of(SAMPLED_PRESETS)}")
        if not any(part.startswith("rasd-") for part in parts):
            _refuse(self._given(RASD), "--draft rasd-pld or rasd-rest:FOLDER")
        if not {"casd", "casd-prompt", "copy"} & {*parts}:
            _refuse(self._given(CASD), "--draft casd, casd-prompt or copy")

    def retrieved_tokens(self) -> int | str:
        """--retrieved as a number, or the name of a budget."""
        from graft.retrieval.budget import BUDGETS

        if self.retrieved in BUDGETS:
            return self.retrieved
        return parse_size("--retrieved", self.retrieved, f"4k, or one of {', '.join(BUDGETS)},")

    def load_arguments(self) -> dict[str, Any]:
        """The arguments of `graft.load`."""
        import graft

        rasd = {name.removeprefix("rasd_"): value for name, value in self._given(RASD).items()}
        casd = {name.removeprefix("casd_"): value for name, value in self._given(CASD).items()}
        return {
            "retriever": self.retriever,
            "retrieved": self.retrieved_tokens(),
            "verifier": self.verifier,
            "shift": graft.Shift(**self._given(SHIFT)),
            "rasd": graft.Rasd(**rasd),
            "casd": graft.Casd(**casd),
            **self._given(GAMMA + CONFIDENCE),
        }

    def _given(self, names: tuple[str, ...]) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def _refuse(given: dict[str, Any], needed: str) -> None:
    """InputError if an option is given without what it needs."""
    for name in given:
        raise InputError(f"--{name.replace('_', '-')} needs {needed}")


def _one_of(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def parse_size(option: str, text: str, example: str) -> int:
    """A whole number from 1 on, such as 500, 32k or 2g (powers of 1,024)."""
    number = text.strip().lower().removesuffix("b")
    power = "kmgt".find(number[-1:]) + 1 if number[-1:].isalpha() else 0
    try:
        size = int(float(number.rstrip("kmgt")) * 1024**power)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise InputError(f"{option} is a size such as {example}, not {text!r}")
    return size
