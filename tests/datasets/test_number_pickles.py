"""Pickles of numbers are read, and everything else is refused before it does anything."""

import contextlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linmem.datasets import number_pickles

values = st.recursive(
    st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(values, st.integers(0, 5))
def test_whatever_protocol_they_were_written_in(value, protocol):
    assert number_pickles.loads(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dtype", ["i1", "u2", "<i4", "<i8"])
def test_numpy_integers_become_integers(protocol, dtype):
    (number,) = np.array([93], dtype)
    assert number_pickles.loads(pickle.dumps([number, number], protocol)) == [93, 93]


def python2_notes(train: str) -> bytes:
    """Return a file as Python 2 wrote them: protocol 0, with NumPy's integers as strings of bytes."""
    return f"(dp0\nS'train'\np1\n{train}s.".encode()


def test_notes_as_python_2_wrote_them():
    dtype = "(S'i8'\nI0\nI1\ntRp4\n(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb"
    note = f"cnumpy.core.multiarray\nscalar\np3\n(cnumpy\ndtype\n{dtype}S'<\\x00\\x00\\x00\\x00\\x00\\x00\\x00'\ntR"
    again = "g3\n(g4\nS'@\\x00\\x00\\x00\\x00\\x00\\x00\\x00'\ntR"
    data = python2_notes(f"(lp2\n(l({note}{again}tp5\naa")
    assert number_pickles.loads(data) == {"train": [[(60, 64)]]}


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_program_is_refused_and_not_run(protocol, tmp_path):
    data = pickle.dumps({"train": [Evil(tmp_path / "evil")]}, protocol)
    with pytest.raises(ValueError, match=r"with '(posix|nt) system': expected a complete pickle of numbers only"):
        number_pickles.loads(data)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cnumpy\ndtype\n(S'O'\nI0\nI1\ntR.",  # objects
        b"cnumpy.core.multiarray\nscalar\n(S'i8'\nS'x'\ntR.",  # a scalar of no dtype
        b"cnumpy\ndtype\n(S'i8'\nI0\nI1\ntR(S'x'\ntb.",  # a state that is none
        b"ios\nsystem\n.",
        b"(ios\nsystem\n.",
        b"\x80\x02\x82\x01.",  # an extension
        b"Pid\n.",  # a persistent name
        b"(S'a'\nI1\nI2\nd.",  # a key without a value
        b"I1\nI2\n.",
        b"a.",
        b"g7\n.",
        b"]",
        b".",
        b"",
        b"nonsense",
        pickle.dumps(1.5),
        pickle.dumps({1, 2}),
        pickle.dumps(np.arange(3)),
    ],
)
def test_anything_else_is_refused(data):
    with pytest.raises(ValueError, match="expected a complete pickle of numbers only"):
        number_pickles.loads(data)


HOSTILE = {
    "a key that is nested too deeply to be hashed": b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s.",
    "a key that refers to itself again and again": b"\x80\x02})q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"K\x01s.",
    "a name that is no string": b"\x80\x04)q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"h\x00\x93.",
    "bytes that are no string": b"c_codecs\nencode\n((I1\nttR.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_take_for_ever_or_crash_is_refused_at_once(name):
    with pytest.raises(ValueError, match="expected a complete pickle of numbers only"):
        number_pickles.loads(HOSTILE[name])


@given(st.binary(max_size=200))
def test_noise_never_gets_further_than_an_error(data):
    with contextlib.suppress(ValueError):
        number_pickles.loads(data)


@given(values, st.data())
def test_a_damaged_file_gives_a_value_or_an_error(value, data):
    content = bytearray(pickle.dumps(value, data.draw(st.integers(0, 5))))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        number_pickles.loads(bytes(content))
