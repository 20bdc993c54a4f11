"""What is learned while requests are answered belongs to the key that sent them.

Drafters remember how often their guesses were right, so their drafts tell a little of the texts
they saw. Each key has drafters of its own: nobody sees in their counts what others were answered.
"""

import threading

from graft.assemble import Drafters
from graft.decode.engine import Engine


class Tenants:
    """The drafters of every key; where there are no keys, the engine's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._making = threading.Lock()
        self._known: dict[str, Drafters] = {"": engine.drafters}

    def drafters(self, tenant: str) -> Drafters:
        """A tenant's own, made when first asked for."""
        with self._making:
            if tenant not in self._known:
                shared = self._engine.drafters.resources  # networks and costs: nothing learned
                self._known[tenant] = Drafters(shared, self._engine.loaded.tokenizer)
            return self._known[tenant]
