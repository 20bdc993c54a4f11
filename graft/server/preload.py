"""Prefill the server's corpus before the first request."""

from collections.abc import Callable

from graft.decode.document_prompt import Chat, fit_documents
from graft.decode.engine import Engine
from graft.decode.request import Request
from graft.sampling import SamplingParams
from graft.server.middleware import tenant_of
from graft.server.settings import ServerSettings


def preload(engine: Engine, settings: ServerSettings, report: Callable[[str], None]) -> bool:
    """Keep the corpus' keys and values in the prefix cache, for each API key; without keys also on
    disk, if the engine has a `disk_cache`. False if each question selects other passages."""
    params = SamplingParams(max_tokens=1)
    chat = Chat(engine, [{"role": "user", "content": "?"}])
    prompt = fit_documents(chat, settings.corpus, params, document_tokens=settings.document_tokens)
    if not prompt.whole:
        return False
    for salt in [tenant_of(key) for key in settings.api_keys] or [""]:
        request = Request(prompt.messages, params, "plain", cache_salt=salt)
        stream = engine.submit(request, streaming=False)
        try:
            while not stream.done:
                done, count = stream.prefill_progress
                report(f"preload: {done:,} of {count:,} tokens of the corpus")
                stream.step()
            stream.finish()
        finally:
            stream.close()
    if not settings.api_keys:
        engine.remember(prompt.messages)
    return True
