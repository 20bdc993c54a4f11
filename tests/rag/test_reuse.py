"""Modes of reuse by name."""

import pytest

from graft.errors import InputError
from graft.rag.reuse import NAMES, Reuse, as_reuse

SAID = [
    ("off", Reuse("off")),
    ("demos", Reuse("off", head=True)),
    ("exact", Reuse("exact")),
    ("exact+reorder", Reuse("exact", reorder=True)),
    ("cics+all", Reuse("cics", "all")),
    ("keep", Reuse("keep")),
    ("blend+0.3", Reuse("blend", share=0.3)),
    ("blend+all+1+reorder", Reuse("blend", "all", 1.0, reorder=True)),
]


@pytest.mark.parametrize(("name", "reuse"), SAID)
def test_names_round_trip(name, reuse):
    assert as_reuse(name) == reuse
    assert reuse.name == name


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_known(name):
    assert as_reuse(name).name == name


def test_arguments_equal_the_name():
    assert as_reuse("blend", scope="all", share=0.5, reorder=True) == as_reuse(
        "blend+reorder+0.5+all"
    )
    assert as_reuse("blend+question+0.15").name == "blend"


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("some", {}, "unknown reuse 'some'; choose one of off, demos, exact"),
        ("cics+some", {}, "'some' in reuse 'cics\\+some' is unknown"),
        ("blend+1.5", {}, "choose one from 0 to 1"),
        ("cics", {"scope": "mine"}, "unknown scope 'mine'"),
        ("exact+all", {}, "exact has no scope"),
        ("cics", {"share": 0.0}, "cics has no share"),
        ("demos", {"reorder": True}, "caches no passages"),
        ("off+0.2", {}, "off has no share"),
    ],
)
def test_unknown_names_and_unused_options_are_refused(name, options, reason):
    with pytest.raises(InputError, match=reason):
        as_reuse(name, **options)
