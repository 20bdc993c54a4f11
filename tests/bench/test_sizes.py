import pytest

from graft.bench.sizes import short, size


def test_a_k_is_1024():
    assert [size(text) for text in ("512", " 4k", "128K ")] == [512, 4096, 131072]
    assert [short(tokens) for tokens in (512, 1000, 4096, 131072)] == ["512", "1000", "4K", "128K"]


@pytest.mark.parametrize("text", ["", "k", "4kk", "1.5k", "many"])
def test_anything_else_is_no_size(text):
    with pytest.raises(ValueError, match="invalid literal"):
        size(text)
