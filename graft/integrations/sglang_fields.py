"""The texts of one request, in SGLang's `custom_params`.

`documents` is a list of texts or of lists of token ids, `prediction` one of either, `corpora` a
list of names. SGLang's processes pass `custom_params` on as lists of scalars, not of lists. So the
front end replaces texts by token ids, and null separates documents: `[5, 6, null, 7]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from graft.errors import InputError
from graft.integrations.request_text import (
    MAX_CHARACTERS,
    MAX_TOKENS,
    Encode,
    in_vocabulary,
    is_text,
)


@dataclass(frozen=True, slots=True)
class Texts:
    """What one request drafts from, apart from its prompt and answer, as token ids."""

    documents: Sequence[Sequence[int]] = ()
    prediction: Sequence[int] = ()
    corpora: Sequence[str] | None = None  # None: all

    def fields(self) -> dict[str, list]:
        """The same as fields that SGLang's processes can pass on."""
        flat = [token for each in self.documents for token in (None, *each)][1:]
        found: dict[str, list] = {"documents": flat, "prediction": list(self.prediction)}
        if self.corpora is not None:
            found["corpora"] = list(self.corpora)
        return found


NO_TEXTS = Texts()
NAMES = ("documents", "prediction", "corpora")


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the fields with a server's tokenizer, if it has one, and its number of token ids."""

    encode: Encode | None
    vocabulary: int

    def read(self, custom: object) -> Texts:
        """The texts in a request's `custom_params`; InputError for a value of another type."""
        if not isinstance(custom, dict) or not any(custom.get(name) is not None for name in NAMES):
            return NO_TEXTS
        given, prediction = custom.get("documents"), custom.get("prediction")
        documents = [self._tokens(each, "documents") for each in _separated(given)]
        predicted = [] if prediction is None else self._tokens(prediction, "prediction")
        count = sum(map(len, documents)) + len(predicted)
        if count > MAX_TOKENS:
            raise _too_long(f"{count} tokens")
        return Texts([each for each in documents if each], predicted, _names(custom.get("corpora")))

    def _tokens(self, text: object, field: str) -> list[int]:
        if isinstance(text, str):
            if self.encode is None:
                raise InputError(
                    f"custom_params.{field}: this server has no tokenizer; send token ids"
                )
            if len(text) > MAX_CHARACTERS:
                raise _too_long(f"a text of {len(text)} characters")
            return self.encode(text)
        if isinstance(text, list) and is_text(text):
            if in_vocabulary(text, self.vocabulary):
                return text
            raise InputError(
                f"custom_params.{field}: token ids must be from 0 to {self.vocabulary - 1}"
            )
        raise (
            _not_texts()
            if field == "documents"
            else InputError("custom_params.prediction must be a text or a list of token ids")
        )


def _separated(documents: object) -> list:
    if documents is None:
        return []
    if not isinstance(documents, list):
        raise _not_texts()
    if all(each is None or type(each) is int for each in documents):
        parts = groupby(documents, lambda each: each is None)
        return [list(part) for separator, part in parts if not separator]
    return documents


def _names(corpora: object) -> list[str] | None:
    if corpora is None:
        return None
    if isinstance(corpora, list) and all(isinstance(each, str) for each in corpora):
        return corpora
    raise InputError("custom_params.corpora must be a list of names of external corpora")


def _not_texts() -> InputError:
    return InputError("custom_params.documents must be a list of texts or of lists of token ids")


def _too_long(found: str) -> InputError:
    return InputError(
        f"custom_params.documents and prediction may have {MAX_TOKENS} tokens together, not "
        f"{found}; add longer texts by /add_external_corpus"
    )
