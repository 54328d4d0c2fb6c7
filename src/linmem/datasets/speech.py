"""Synthetic speech in TIMIT's directory layout, spoken by espeak-ng: a free stand-in for a licensed corpus.

Nothing here is TIMIT's: the sentences were made up for the purpose, and so are the speakers.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from linmem.datasets.words import MARKER, SAMPLE_RATE

#: What is said under the code of each sentence of the task.
SENTENCES = {
    "SX430": "Anna was making tea",
    "SX320": "He kept walking north",
    "SX177": "We are cooking rice",
    "SX229": "They were looking up",
    "SX4": "She is working late",
    "SX42": "A biblical verse came",
    "SX146": "The cyclical trend ended",
    "SX135": "Some technical notes arrived",
    "SX52": "Both classical and critical works",
    "SX137": "One old tradition stayed",
    "SX45": "A small addition helped",
    "SX194": "Her first audition ended",
    "SX251": "Fair recognition came late",
    "SX141": "The competition was hard",
    "SX15": "Seven musicians played",
    "SX40": "Long discussions followed",
    "SX41": "New regulations apply",
    "SX191": "False accusations hurt",
    "SX349": "Good conditions help",
    "SX246": "The subway was full",
    "SX230": "Give some leeway now",
    "SX233": "A freeway meets the highway here",
    "SX106": "The hallway was dark",
}

ACCENTS = ("en-us", "en", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029")
WOMEN = ("f1", "f2", "f3", "f4", "f5", "Alicia", "Andrea", "Annie", "belinda", "linda", "steph")
MEN = ("m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "klatt", "klatt2", "croak", "Alex", "Denis", "Diogo", "Gene",
       "Hugo", "Lee", "Michael", "Mike", "david", "edward", "john", "paul", "quincy", "robert", "victor")  # fmt: skip

#: Numbers below this are silence behind the last word.
QUIET = 60


@dataclass(frozen=True)
class Speaker:
    """Somebody made up: where their files lie, and how they sound to espeak-ng."""

    usage: str
    dialect: str
    name: str
    voice: str
    pitch: int
    rate: int
    span: int


SEVEN = (
    Speaker("TRAIN", "DR1", "MESA0", "en-us+m3", 40, 165, 45),
    Speaker("TRAIN", "DR2", "FESB0", "en-us+f2", 62, 175, 55),
    Speaker("TRAIN", "DR4", "MESC0", "en-gb-scotland+m1", 35, 150, 50),
    Speaker("TRAIN", "DR5", "FESD0", "en-gb-x-rp+f4", 70, 185, 40),
    Speaker("TRAIN", "DR7", "MESE0", "en-gb-x-gbclan+m7", 52, 200, 60),
    Speaker("TEST", "DR3", "FESF0", "en-029+f3", 56, 160, 50),
    Speaker("TEST", "DR6", "MESG0", "en-gb-x-gbcwmd+m5", 46, 180, 35),
)


def write_corpus(folder: Path, voices: Literal["many", "seven"] = "many", seed: int = 0) -> None:
    """Write sentences as 16 kHz recordings with the places of their words; the folder appears complete or not at all.

    Parameters
    ----------
    folder
        It must not exist.
    voices
        161 voices that say one sentence each, so that a voice tells nothing of a word, or seven that say all.
    seed
        Of the voices, and of a faint noise under them.
    """
    if folder.exists():
        raise FileExistsError(f"folder={str(folder)!r} exists: expected a new one")
    if find_spec("espeakng_loader") is None:
        raise ImportError("synthetic speech needs espeak-ng: pip install 'linmem[speech]'")
    # What espeak-ng says depends on what it said before, so it speaks in a process of its own.
    command = [sys.executable, "-m", "linmem.datasets.speech", str(folder), voices, str(seed)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        reason = result.stderr.strip().rpartition("\n")[2] or f"exit status {result.returncode}"
        raise RuntimeError(f"espeak-ng could not speak: {reason}")


def _speak(folder: Path, voices: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    synthesizer = _Espeak()
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".speaking-", dir=folder.parent))
    try:
        for speaker, code in _plan(voices, rng):
            place = work / "TIMIT" / speaker.usage / speaker.dialect / speaker.name
            place.mkdir(parents=True, exist_ok=True)
            sound, words = synthesizer.say(SENTENCES[code], speaker)
            sound = sound + rng.normal(0, 4, len(sound))
            samples = np.clip(np.round(sound), -(2**15), 2**15 - 1).astype("<i2")
            (place / f"{code}.WAV").write_bytes(_sphere_header(len(samples)) + samples.tobytes())
            (place / f"{code}.WRD").write_text("".join(f"{start} {end} {word}\n" for start, end, word in words))
        (work / MARKER).write_text(f"Spoken by espeak-ng: {voices} voices, seed {seed}.\n")
        work.chmod(0o755)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _plan(voices: str, rng: np.random.Generator) -> Iterator[tuple[Speaker, str]]:
    """Who says what."""
    if voices == "seven":
        for speaker in SEVEN:
            for code in SENTENCES:
                yield speaker, code
        return
    for i, code in enumerate(code for code in SENTENCES for _ in range(7)):
        variant = str(rng.choice((*WOMEN, *MEN)))
        letters = chr(ord("A") + i // 26) + chr(ord("A") + i % 26)
        yield (
            Speaker(
                usage="TEST" if i % 7 in (2, 5) else "TRAIN",
                dialect=f"DR{i % 8 + 1}",
                name=f"{'F' if variant in WOMEN else 'M'}E{letters}0",
                voice=f"{rng.choice(ACCENTS)}+{variant}",
                pitch=int(rng.integers(25, 80)),
                rate=int(rng.integers(140, 215)),
                span=int(rng.integers(25, 75)),
            ),
            code,
        )


def _sphere_header(samples: int) -> bytes:
    fields = {
        "database_id -s16": "espeak_ng_standin",
        "channel_count -i": 1,
        "sample_count -i": samples,
        "sample_rate -i": SAMPLE_RATE,
        "sample_n_bytes -i": 2,
        "sample_byte_format -s2": "01",
        "sample_sig_bits -i": 16,
        "sample_coding -s3": "pcm",
    }
    lines = ["NIST_1A", "   1024", *(f"{name} {value}" for name, value in fields.items()), "end_head\n"]
    return "\n".join(lines).encode().ljust(1024)


class _Event(ctypes.Structure):
    """What espeak-ng reports beside the sound."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # in milliseconds
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


_LAST, _WORD = 0, 1  # types of events
_RATE, _PITCH, _RANGE = 1, 3, 4  # parameters of a voice
_SYNCHRONOUS, _UTF8 = 2, 1


class _Espeak:
    """The speech synthesizer, which keeps its state in the process."""

    def __init__(self) -> None:
        import espeakng_loader

        self.library = ctypes.CDLL(espeakng_loader.get_library_path())
        self.sample_rate = self.library.espeak_Initialize(_SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
        if self.sample_rate <= 0:
            raise RuntimeError("espeak-ng could not be started: expected its voices beside its library")
        # Breath is noise: the library has two generators of it, one of its own and one of C.
        self.library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        ctypes.CDLL("msvcrt" if os.name == "nt" else None).srand(1)
        self.pieces: list[NDArray[np.int16]] = []
        self.words: list[tuple[int, int, int]] = []
        receive = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))
        self.receive = receive(self._receive)  # kept: the library calls it later
        self.library.espeak_SetSynthCallback(self.receive)

    def _receive(self, sound: Any, count: int, events: Any) -> int:
        if sound and count > 0:
            self.pieces.append(np.ctypeslib.as_array(sound, (count,)).copy())
        i = 0
        while events[i].type != _LAST:
            event = events[i]
            if event.type == _WORD:
                self.words.append((event.text_position - 1, event.length, event.audio_position))
            i += 1
        return 0

    def say(self, text: str, speaker: Speaker) -> tuple[NDArray[np.float64], list[tuple[int, int, str]]]:
        """Return the sound, and the first sample of each word, one past its last and the word."""
        self.pieces, self.words = [], []
        if self.library.espeak_SetVoiceByName(speaker.voice.encode()) != 0:
            raise RuntimeError(f"espeak-ng has no voice {speaker.voice!r}: expected a newer version")
        for parameter, value in ((_RATE, speaker.rate), (_PITCH, speaker.pitch), (_RANGE, speaker.span)):
            self.library.espeak_SetParameter(parameter, value, 0)
        data = f"{text}.".encode() + b"\0"
        self.library.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, 1, 0, _UTF8, None, None)
        sound = np.concatenate(self.pieces).astype(np.float64)
        end = int(np.flatnonzero(np.abs(sound) > QUIET)[-1]) + 1
        scale = SAMPLE_RATE / self.sample_rate
        starts = [round(ms * SAMPLE_RATE / 1000) for _, _, ms in self.words]
        names = [text[at : at + length].lower() for at, length, _ in self.words]
        ends = [*starts[1:], round(end * scale)]
        sound = resample_poly(sound, SAMPLE_RATE, self.sample_rate)[: round(end * scale) + SAMPLE_RATE // 20]
        return sound, list(zip(starts, ends, names, strict=True))


if __name__ == "__main__":
    _speak(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
