"""A head's folder in a pod: made once, found again, and never another run's."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.head.podfolder import CannotUse, make_folder
from harness.wire.keys import ServerKeys


def mounted(tmp_path: Path) -> tuple[Path, Path]:
    spec, keys = tmp_path / "etc" / "spec.json", tmp_path / "keys"
    spec.parent.mkdir()
    spec.write_text('{"name": "one"}')
    ServerKeys.fresh().save(keys)
    return spec, keys


def test_the_folder_holds_spec_and_keys_and_a_second_head_finds_it(tmp_path: Path) -> None:
    spec, keys = mounted(tmp_path)
    run = tmp_path / "results" / "one-20260101"
    for _ in range(2):
        make_folder(run, spec, keys)
    assert (run / "spec.json").read_text() == spec.read_text()
    assert ServerKeys.load(run / "keys").server == ServerKeys.load(keys).server
    assert (run / "keys").is_symlink()


def test_a_folder_of_another_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    spec, keys = mounted(tmp_path)
    run = tmp_path / "run"
    make_folder(run, spec, keys)
    spec.write_text('{"name": "two"}')
    with pytest.raises(CannotUse, match=r"holds another run.*give this run another name"):
        make_folder(run, spec, keys)


@pytest.mark.parametrize(
    ("which", "said"), [("spec", "--spec .* cannot be read"), ("keys", "no server.key"), ("json", "is not JSON")]
)
def test_what_is_not_mounted_is_named(tmp_path: Path, which: str, said: str) -> None:
    spec, keys = mounted(tmp_path)
    if which == "spec":
        spec.unlink()
    elif which == "json":
        spec.write_text("{")
    else:
        (keys / "server.key").unlink()
    with pytest.raises(CannotUse, match=said):
        make_folder(tmp_path / "run", spec, keys)
