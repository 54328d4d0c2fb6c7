"""Where data files are: the one place that looks for them, and fetches and unpacks them.

Files from elsewhere are not trusted. A download counts only if its sha256 is the expected one, and an archive whose
members point outside its folder, or that unpacks to more than is sensible, is refused before anything of it is used.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

#: Archives that unpack to more bytes, files, or folders within folders are refused.
MOST_BYTES = 2**32
MOST_FILES = 100_000
DEEPEST = 32

#: How much is read at once; tar files that want more for the name of a member are refused.
CHUNK = 2**20

#: Of these a member of a zip file unpacks to no more than it says. Of bzip2 and LZMA, a few bytes may become gigabytes.
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

#: Seconds without an answer after which the next mirror is tried.
TIMEOUT = 20


@dataclass(frozen=True)
class Mirror:
    """A file on the web, and what it must be."""

    url: str
    sha256: str


def cache_folder() -> Path:
    """Return the folder of this user that downloads and unpacked archives go to."""
    try:
        import pooch
    except ImportError:
        raise ImportError("the cache of downloads needs pooch: pip install 'linmem[experiments]'") from None
    return Path(pooch.os_cache("linmem"))


def find(
    names: Sequence[str],
    *,
    kind: str,
    path: str | os.PathLike[str] | None = None,
    mirrors: Iterable[Mirror] = (),
) -> Path:
    """Return the first file there is: at `path`, in ``LINMEM_DATA``, in this user's cache, or from a mirror.

    Parameters
    ----------
    names
        What the file may be called, most wanted first.
    kind
        A subfolder in which the file may lie, too: ``"pianoroll"``.
    path
        A file, or a folder that has it. If given, nothing else is looked at.
    mirrors
        Where to download it from, in order.

    Raises
    ------
    FileNotFoundError
        With one sentence that says which file to put where.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "notes.npz").write_bytes(b"")
    ...     find(["notes.pickle", "notes.npz"], kind="pianoroll", path=folder).name
    'notes.npz'
    """
    wanted = " or ".join(names)
    if path is not None:
        path = Path(path)
        found = path if path.is_file() else _first(path, kind, names)
        if found is None:
            raise FileNotFoundError(f"path={str(path)!r}: expected a file, or a folder with {wanted}")
        return found
    named = os.environ.get("LINMEM_DATA")
    if named and (found := _first(Path(named), kind, names)) is not None:
        return found
    folder = cache_folder()
    if (found := _first(folder, kind, names)) is not None:
        return found
    failures = []
    for mirror in mirrors:
        try:
            return _download(mirror, folder / kind)
        except Exception as error:  # whatever stands between this machine and a mirror, the next may answer
            failures.append(f"{mirror.url}: {in_short(error)}")
    tried = f" (downloads failed: {'; '.join(failures)})" if failures else ""
    raise FileNotFoundError(
        f"{wanted} was not found: put it into {folder / kind}, or into a folder named by LINMEM_DATA{tried}"
    )


def in_short(error: Exception) -> str:
    """Return what an error says, on one line and of a length to be read."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _first(folder: Path, kind: str, names: Iterable[str]) -> Path | None:
    candidates = (place / name for name in names for place in (folder, folder / kind))
    return next((path for path in candidates if path.is_file()), None)


def _download(mirror: Mirror, folder: Path) -> Path:
    """Fetch a file into a folder; it appears there complete and checked, or not at all."""
    import pooch

    name = unquote(PurePosixPath(mirror.url).name)
    downloader = pooch.HTTPDownloader(timeout=TIMEOUT)
    pooch.get_logger().setLevel("WARNING")
    return Path(pooch.retrieve(mirror.url, f"sha256:{mirror.sha256}", name, folder, downloader=downloader))


def folder_at(path: str | os.PathLike[str]) -> Path:
    """Return a folder as it is, and an archive (tar or zip) as a folder of this user's cache.

    Raises
    ------
    FileNotFoundError
        If there is neither a folder nor a file.
    ValueError
        If the file is no archive, is damaged, or is not to be trusted.
    """
    path = Path(path)
    if path.is_dir():
        return path
    if not path.is_file():
        raise FileNotFoundError(f"path={str(path)!r}: expected a folder or an archive")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = cache_folder() / "unpacked" / digest[:32]
    if not target.exists():
        unpack(path, target)
    return target


def unpack(archive: Path, target: Path) -> None:
    """Unpack an archive into a new folder, which appears when all of it is there.

    Nothing is written outside it: links, devices, absolute paths and paths with ``..`` are refused.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=target.parent))
    try:
        if zipfile.is_zipfile(archive):
            _unpack_zip(archive, work)
        else:
            _unpack_tar(archive, work)
        work.chmod(0o755)
        work.rename(target)
    except Exception as error:  # there is no end to what damaged archives make libraries raise
        if target.is_dir():  # another process was faster
            return
        if str(error).startswith(str(archive)):
            raise
        raise ValueError(f"{archive}: expected an intact tar or zip archive ({in_short(error)})") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack_zip(archive: Path, work: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        budget = _Budget(archive)
        for member in file.infolist():
            check_member(member)
            to = budget.place(work, member.filename, member.file_size)
            if member.is_dir():
                to.mkdir(parents=True, exist_ok=True)
                continue
            to.parent.mkdir(parents=True, exist_ok=True)
            with file.open(member) as source, open(to, "xb") as out:
                shutil.copyfileobj(source, out)


def check_member(member: zipfile.ZipInfo) -> None:
    """Refuse a member of a zip file that may unpack to more than it says."""
    if member.compress_type not in ZIP_METHODS:
        raise ValueError(f"{member.filename[:80]!r} is not compressed with deflate, as expected")


def _unpack_tar(archive: Path, work: Path) -> None:
    with _unpacked_stream(archive) as stream:
        bounded: Any = _Bounded(stream)
        with tarfile.open(fileobj=bounded, mode="r:") as file:
            budget = _Budget(archive)
            for member in file:
                to = budget.place(work, member.name, member.size)
                if member.isdir():
                    to.mkdir(parents=True, exist_ok=True)
                    continue
                source = file.extractfile(member) if member.isreg() and not member.issparse() else None
                if source is None:
                    raise ValueError(
                        f"{archive}: {member.name[:80]!r} is neither a file nor a folder: expected nothing else"
                    )
                to.parent.mkdir(parents=True, exist_ok=True)
                with open(to, "xb") as out:
                    shutil.copyfileobj(source, out)
        bounded.check_end()


def _unpacked_stream(archive: Path) -> IO[bytes]:
    """Open a tar file, whatever it is compressed with."""
    with open(archive, "rb") as file:
        start = file.read(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(archive)  # type: ignore[return-value]
    if start.startswith(b"BZh"):
        return bz2.open(archive)
    if start == b"\xfd7zXZ\0":
        return lzma.open(archive)
    return open(archive, "rb")


class _Bounded:
    """A stream that gives no more at once, and no more altogether, than is sensible."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.end = stream, b""

    def read(self, n: int = -1) -> bytes:
        if not 0 <= n <= CHUNK:
            raise ValueError(f"{n} bytes in one piece where a name or a header should be")
        data = self.stream.read(n)
        self.end = (self.end + data)[-512:]
        if self.stream.tell() > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES >> 20} MB when unpacked")
        return data

    def seek(self, position: int, whence: int = 0) -> int:
        return self.stream.seek(position, whence)

    def tell(self) -> int:
        return self.stream.tell()

    def check_end(self) -> None:
        """Read on to the end, where checksums are compared; an archive that is complete ends in zeros."""
        while self.read(CHUNK):
            pass
        if self.end != bytes(512):
            raise ValueError("its end is missing")


class _Budget:
    """Counts what an archive unpacks to, and says where its members go."""

    def __init__(self, archive: Path) -> None:
        self.archive, self.bytes, self.files = archive, 0, 0

    def place(self, work: Path, name: str, size: int) -> Path:
        """Return where a member goes, if it may be unpacked at all."""
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts or "\\" in name or PureWindowsPath(name).drive:
            raise ValueError(
                f"{self.archive}: {name[:80]!r} leads outside the archive's folder, so nothing was unpacked"
            )
        if size < 0 or len(inside.parts) > DEEPEST:
            raise ValueError(f"{self.archive}: {name[:80]!r} has {size} bytes at a depth of {len(inside.parts)}")
        self.bytes, self.files = self.bytes + size, self.files + 1
        if self.bytes > MOST_BYTES or self.files > MOST_FILES:
            raise ValueError(
                f"{self.archive}: expected at most {MOST_FILES} files and {MOST_BYTES >> 20} MB when unpacked"
            )
        return work.joinpath(*inside.parts)


def read_arrays(path: Path, names: Iterable[str], most_bytes: int) -> dict[str, NDArray[Any]]:
    """Read arrays from a file that `numpy.savez` wrote.

    Raises
    ------
    ValueError
        If it is damaged, lacks one of them, has objects among them, or unpacks to more bytes than are allowed.
    """
    with open(path, "rb"):  # a missing file is no damaged one
        pass
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                check_member(member)
            size = sum(member.file_size for member in archive.infolist())
        if size > most_bytes:
            raise ValueError(f"{size} bytes when unpacked: expected at most {most_bytes}")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in names}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} is no array")
    except Exception as error:  # there is no end to what damaged files make zipfile and NumPy raise
        raise ValueError(in_short(error)) from None
    return arrays
