"""Compile the kernels of datastores, or load them from numba's cache, ahead of time."""

import numpy as np

from graft.match.rest import RestIndex
from graft.match.store_files import LARGEST_U16, Manifest, ShardArrays
from graft.match.suffix_array import Store, StoreIndex
from graft.match.suffix_sort import suffix_array


def warm_up(vocabulary: int) -> None:
    """Compile the searches of a store with this vocabulary size."""
    manifest = Manifest("", "", vocabulary)
    text = np.array([0, 0, 0, 0, vocabulary], dtype=manifest.dtype)
    suffixes = np.arange(4, dtype=np.uint32)
    for array in (text, suffixes):
        array.flags.writeable = False  # as mapped files are
    store = Store(manifest, [ShardArrays(text, suffixes)])
    for kind in (StoreIndex, RestIndex):
        index = kind(store)
        index.extend(np.zeros(3, dtype=np.int32))
        index.lookup(4, np.ones(2))


def compile_all() -> None:
    """Compile searching and building, for ids of two bytes and of four."""
    for vocabulary in (LARGEST_U16, LARGEST_U16 + 1):
        warm_up(vocabulary)
        suffix_array(np.zeros(4, dtype=Manifest("", "", vocabulary).dtype), vocabulary, threads=1)
