"""Files are found, fetched and unpacked, and nothing is trusted."""

import hashlib
import io
import os
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from linmem.datasets import store
from linmem.datasets.store import Mirror

NAMES = ["notes.npz", "notes.pickle"]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address under which it is served."""
    folder = tmp_path / "web"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_file_is_looked_for_from_the_nearest_place_on(tmp_path, monkeypatch, nothing_there):
    def put(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "notes.npz").write_bytes(b"x")
        return folder / "notes.npz"

    cached = put(nothing_there / "kind")
    assert store.find(NAMES, kind="kind") == cached
    monkeypatch.setenv("LINMEM_DATA", str(tmp_path / "data"))
    assert store.find(NAMES, kind="kind") == cached, "a folder without the file is passed over"
    shared = put(tmp_path / "data" / "kind")
    assert store.find(NAMES, kind="kind") == shared
    mine = put(tmp_path / "mine")
    assert store.find(NAMES, kind="kind", path=tmp_path / "mine") == mine
    assert store.find(NAMES, kind="kind", path=mine) == mine


def test_an_explicit_path_is_all_that_is_looked_at(tmp_path, nothing_there):
    (nothing_there / "kind").mkdir(parents=True)
    (nothing_there / "kind" / "notes.npz").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"path='.*': expected a file, or a folder with notes\.npz or notes"):
        store.find(NAMES, kind="kind", path=tmp_path)


def test_without_a_network_one_sentence_says_what_to_put_where(nothing_there, monkeypatch, tmp_path):
    mirror = Mirror("http://127.0.0.1:9/notes.npz", "0" * 64)  # nobody listens there
    with pytest.raises(FileNotFoundError) as caught:
        store.find(NAMES, kind="kind", mirrors=[mirror])
    sentence = str(caught.value)
    assert "notes.npz or notes.pickle was not found: put it into" in sentence
    assert str(nothing_there / "kind") in sentence
    assert "LINMEM_DATA" in sentence
    assert "\n" not in sentence


def test_a_download_with_another_hash_is_thrown_away_and_the_next_mirror_is_asked(web, nothing_there):
    folder, address = web
    (folder / "bad").mkdir()
    (folder / "bad" / "notes.npz").write_bytes(b"something else")
    (folder / "notes.npz").write_bytes(b"the notes")
    missing, bad, good = (f"{address}/{name}" for name in ("nowhere/notes.npz", "bad/notes.npz", "notes.npz"))
    digest = sha256(b"the notes")
    found = store.find(NAMES, kind="kind", mirrors=[Mirror(missing, digest), Mirror(bad, digest), Mirror(good, digest)])
    assert found == nothing_there / "kind" / "notes.npz"
    assert found.read_bytes() == b"the notes"
    (folder / "notes.npz").unlink()
    assert store.find(NAMES, kind="kind") == found, "the second time, it is there"


def test_if_no_mirror_has_the_right_file_nothing_is_kept(web, nothing_there):
    folder, address = web
    (folder / "notes.npz").write_bytes(b"something else")
    with pytest.raises(FileNotFoundError, match=r"notes\.npz: .*hash"):
        store.find(NAMES, kind="kind", mirrors=[Mirror(f"{address}/notes.npz", sha256(b"the notes"))])
    assert not [path for path in nothing_there.rglob("*") if path.is_file()]


# ------------------------------------------------------------------------------------------------ archives


def tar_with(path: Path, *members: tarfile.TarInfo, mode: str = "w:xz") -> Path:
    with tarfile.open(path, mode) as file:  # type: ignore[call-overload]
        for member in members:
            file.addfile(member, io.BytesIO(b"x" * member.size) if member.isreg() else None)
    return path


def member(name: str, size: int = 3, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size if kind == tarfile.REGTYPE else 0, kind, link
    return info


@pytest.mark.parametrize("kind", ["tar.xz", "tar", "zip"])
def test_an_archive_becomes_a_folder(kind, tmp_path, nothing_there):
    path = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("one/two.txt", "xxx")
    else:
        tar_with(path, member("one", kind=tarfile.DIRTYPE), member("one/two.txt"), mode="w:xz" if "xz" in kind else "w")
    folder = store.folder_at(path)
    assert (folder / "one" / "two.txt").read_text() == "xxx"
    assert store.folder_at(path) == folder
    assert store.folder_at(folder) == folder
    assert not [p for p in folder.parent.iterdir() if p != folder], "nothing else is left behind"


HOSTILE = ["../evil", "/tmp/evil-linmem", "one/../../evil", "..\\evil", "C:/evil"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_path_that_leads_outside_is_refused(name, kind, tmp_path, nothing_there):
    path = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("fine", "xxx")
            info = zipfile.ZipInfo("evil")
            info.filename = name
            file.writestr(info, "xxx")
    else:
        tar_with(path, member("fine"), member(name), mode="w")
    with pytest.raises(ValueError, match="leads outside the archive's folder, so nothing was unpacked"):
        store.folder_at(path)
    everything = [p for p in tmp_path.rglob("*") if p.is_file() and p != path]
    assert not everything, f"written: {everything}"
    assert not Path("/tmp/evil-linmem").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(kind, tmp_path, nothing_there):
    path = tar_with(tmp_path / "a.tar.xz", member("link", kind=kind, link="/etc"), member("link/passwd"))
    with pytest.raises(ValueError, match=r"'link' is neither a file nor a folder"):
        store.folder_at(path)
    assert not list((nothing_there / "unpacked").iterdir())


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, nothing_there, monkeypatch):
    monkeypatch.setattr(store, "MOST_BYTES", 1000)
    for i, path in enumerate([tmp_path / "a.tar.xz", tmp_path / "a.zip"]):
        if i:
            with zipfile.ZipFile(path, "w") as file:
                for j in range(4):
                    file.writestr(f"file{j}", bytes(300))
        else:
            tar_with(path, *(member(f"file{j}", 300) for j in range(4)))
        with pytest.raises(ValueError, match="0 MB when unpacked"):
            store.folder_at(path)


@pytest.mark.parametrize("data", [b"", b"nothing of the kind", b"PK\x03\x04 but no more"])
def test_what_is_no_archive_is_refused(data, tmp_path, nothing_there):
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="expected an intact tar or zip archive"):
        store.folder_at(path)


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip"])
@pytest.mark.parametrize("damage", ["half of it", "all but its end", "a wrong byte"])
def test_a_truncated_or_damaged_archive_leaves_nothing(ending, damage, tmp_path, nothing_there):
    path, noise = tmp_path / f"a.{ending}", os.urandom(3000)
    if ending == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for i in range(4):
                file.writestr(f"file{i}", noise)
    else:
        with tarfile.open(path, "w:" + ending[4:]) as file:
            for i in range(4):
                file.addfile(member(f"file{i}", 3000), io.BytesIO(noise))
    data = bytearray(path.read_bytes())
    if damage == "half of it":
        del data[len(data) // 2 :]
    elif damage == "all but its end":  # of a plain archive, where a member begins
        del data[3 * (512 + 3072) if ending == "tar" else -20 :]
    else:
        data[512 if ending != "tar" else 20] ^= 255
    path.write_bytes(data)
    with pytest.raises(ValueError, match="expected an intact tar or zip archive"):
        store.folder_at(path)
    assert not list((nothing_there / "unpacked").iterdir())


def test_a_name_that_claims_to_be_megabytes_long_is_refused(tmp_path, nothing_there):
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as file:
        file.addfile(member("x" * 3_000_000))
    with pytest.raises(ValueError, match="bytes in one piece where a name or a header should be"):
        store.folder_at(path)


def test_folders_within_folders_within_folders_are_refused(tmp_path, nothing_there):
    path = tar_with(tmp_path / "a.tar.xz", member("/".join("a" * 40)))
    with pytest.raises(ValueError, match="at a depth of 40"):
        store.folder_at(path)


def test_a_member_of_negative_size_is_refused():
    with pytest.raises(ValueError, match="'x' has -5 bytes"):
        store._Budget(Path("a.tar")).place(Path("work"), "x", -5)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a folder or an archive"):
        store.folder_at(tmp_path / "nowhere")
    assert os.listdir(tmp_path) == []
