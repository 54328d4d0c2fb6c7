"""Where data files are: the one place that looks for them, and fetches and unpacks them.

Files from elsewhere are not trusted. A download counts only if its sha256 is the expected one, and an archive whose
members point outside its folder, or that unpacks to more than is sensible, is refused before anything of it is used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

#: Archives that unpack to more bytes or files are refused.
MOST_BYTES = 2**32
MOST_FILES = 100_000

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
    folders = [Path(os.environ["LINMEM_DATA"])] if os.environ.get("LINMEM_DATA") else []
    for folder in folders:
        if (found := _first(folder, kind, names)) is not None:
            return found
    folder = cache_folder()
    if (found := _first(folder, kind, names)) is not None:
        return found
    failures = []
    for mirror in mirrors:
        try:
            return _download(mirror, folder / kind)
        except Exception as error:  # whatever stands between this machine and a mirror, the next may answer
            failures.append(f"{mirror.url}: {' '.join(str(error).split())[:200]}")
    tried = f" (downloads failed: {'; '.join(failures)})" if failures else ""
    raise FileNotFoundError(
        f"{wanted} was not found: put it into {folder / kind}, or into a folder named by LINMEM_DATA{tried}"
    )


def _first(folder: Path, kind: str, names: Iterable[str]) -> Path | None:
    candidates = (place / name for name in names for place in (folder, folder / kind))
    return next((path for path in candidates if path.is_file()), None)


def _download(mirror: Mirror, folder: Path) -> Path:
    """Fetch a file into a folder; it appears there complete and checked, or not at all."""
    import pooch

    name = PurePosixPath(mirror.url).name
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
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        if target.is_dir():  # another process was faster
            return
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{archive}: expected an intact tar or zip archive ({reason})") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack_zip(archive: Path, work: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        budget = _Budget(archive)
        for member in file.infolist():
            to = budget.place(work, member.filename, member.file_size)
            if member.is_dir():
                to.mkdir(parents=True, exist_ok=True)
                continue
            to.parent.mkdir(parents=True, exist_ok=True)
            with file.open(member) as source, open(to, "xb") as out:
                shutil.copyfileobj(source, out)


def _unpack_tar(archive: Path, work: Path) -> None:
    with tarfile.open(archive) as file:
        budget = _Budget(archive)
        for member in file:
            to = budget.place(work, member.name, member.size)
            if member.isdir():
                to.mkdir(parents=True, exist_ok=True)
                continue
            source = file.extractfile(member) if member.isreg() else None
            if source is None:
                raise ValueError(f"{archive}: {member.name!r} is neither a file nor a folder: expected nothing else")
            to.parent.mkdir(parents=True, exist_ok=True)
            with open(to, "xb") as out:
                shutil.copyfileobj(source, out)


class _Budget:
    """Counts what an archive unpacks to, and says where its members go."""

    def __init__(self, archive: Path) -> None:
        self.archive, self.bytes, self.files = archive, 0, 0

    def place(self, work: Path, name: str, size: int) -> Path:
        """Return where a member goes, if it may be unpacked at all."""
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts or "\\" in name or PureWindowsPath(name).drive:
            raise ValueError(f"{self.archive}: {name!r} leads outside the archive's folder, so nothing was unpacked")
        self.bytes, self.files = self.bytes + size, self.files + 1
        if self.bytes > MOST_BYTES or self.files > MOST_FILES:
            raise ValueError(
                f"{self.archive}: expected at most {MOST_FILES} files and {MOST_BYTES >> 20} MB when unpacked"
            )
        return work.joinpath(*inside.parts)
