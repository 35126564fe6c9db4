"""All files or none; nothing overwritten unless forced; one message for what goes wrong."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from estimators import InputError
from selector.configs.folder import write

FILES = {"a.json": "{}\n", "model/config.json": "{}\n", "launch.sh": "true\n"}


def there(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_new_folder_appears_whole(tmp_path: Path) -> None:
    names = write(FILES, tmp_path / "deep" / "run dir")
    assert [os.path.relpath(n, tmp_path / "deep" / "run dir") for n in names] == list(FILES)
    assert os.access(tmp_path / "deep" / "run dir" / "launch.sh", os.X_OK)
    assert os.listdir(tmp_path / "deep") == ["run dir"]


def test_existing_files_stay_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("mine")
    (tmp_path / "other").write_text("mine")
    with pytest.raises(InputError, match=r"a\.json would be overwritten.*--force"):
        write(FILES, tmp_path)
    assert there(tmp_path) == ["a.json", "other"]
    write(FILES, tmp_path, force=True)
    assert there(tmp_path) == sorted([*FILES, "other"])
    assert (tmp_path / "a.json").read_text() == "{}\n" and (tmp_path / "other").read_text() == "mine"


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write(FILES, tmp_path / "run")
    assert there(tmp_path / "run") == sorted(FILES) and os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool) -> None:
    if existing:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "a.json").write_text("mine")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="nothing was written: No space left"):
        write(FILES, tmp_path / "run", force=True)
    assert there(tmp_path) == (["run/a.json"] if existing else [])
    assert os.listdir(tmp_path) == (["run"] if existing else [])


def test_a_rename_that_fails_halfway_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.json").write_text("mine")
    rename = os.rename

    def failing(source: Path, target: Path) -> None:
        if str(target).endswith("launch.sh"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(InputError, match="Permission denied"):
        write(FILES, tmp_path / "run", force=True)
    assert there(tmp_path) == ["run/a.json"] and (tmp_path / "run" / "a.json").read_text() == "mine"


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "run" / "a.json").mkdir(parents=True)
    for place, reason in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "run", "nothing was written"),
        (tmp_path / "run", "is a folder there"),
        (tmp_path / ("x" * 300), "nothing was written"),
        ("a\0b", "not a folder's name"),
    ):
        with pytest.raises(InputError, match=reason):
            write(FILES, place, force=True)
    assert sorted(os.listdir(tmp_path)) == ["file", "run"]
