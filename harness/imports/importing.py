"""Import whatever a path is, and give it a name among the runs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from harness.imports.copying import is_archive, unpack
from harness.imports.endpoints import EVENTS, SIGNS, import_endpoints
from harness.imports.errors import ImportProblem
from harness.imports.loadgen import import_loadgen
from harness.imports.loadgen_places import LOGS
from harness.imports.made import Made
from harness.imports.recorded import find_run_folder, import_recorded
from harness.imports.staging import Staging, checked_name, made_name
from harness.imports.told import Progress, Told, silent
from harness.mlperf.detail_log import DETAIL_LOG
from harness.records.layout import RunFolder
from harness.records.runfile import Imported, RunFile, write_run
from harness.spec import RunSpec

Kind = Literal["run", "loadgen", "endpoints"]
_MOST_LOOKED_AT: Final = 20_000


@dataclass(frozen=True, slots=True)
class Import:
    """What was made. `problems`: damaged parts of the record, which are left out whenever it is read."""

    folder: RunFolder
    kind: Kind
    run: RunFile
    told: Told
    problems: list[str]


def import_run(
    source: Path, root: Path, *, name: str | None = None, kind: Kind | None = None, progress: Progress = silent
) -> Import:
    """Into `root`, under `name` or one that tells what it is (-2, -3 … if that is taken). Raises ImportProblem, OSError."""
    if name is not None:
        checked_name(name)
    try:
        given = source.expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ImportProblem(f"{source}: {why}; give a run's folder, an archive of one, or a file of its logs") from error
    told = Told()
    with Staging(root) as staging:
        place = unpack(given, staging, told, progress) if is_archive(given) else given
        found, folder = _what(place, given, kind)
        if found == "run":
            run, proposed = import_recorded(folder, staging, told, progress)
        else:
            make = import_loadgen if found == "loadgen" else import_endpoints
            made = make(folder, staging, told, progress)
            proposed = _archive_name(given) if place is not given and "unpacked" in made.name else made.name
            run = _run_file(made, given, told)
            for table in (staging.run.samples, staging.run.timeline):
                table.mkdir(exist_ok=True)
        return _publish(staging, run, name or proposed, found, told)


def _publish(staging: Staging, run: RunFile, wanted: str, kind: Kind, told: Told) -> Import:
    """Raises ImportProblem."""
    for _ in range(100):
        run.run = staging.free_name(wanted)
        write_run(staging.run.path, run)
        try:
            folder = staging.publish(run.run)
        except FileExistsError:
            continue
        return Import(folder, kind, run, told, _problems(folder))
    raise ImportProblem(f"{staging.root}: {wanted} and its like are taken as fast as they are tried; give another --name")


def _run_file(made: Made, source: Path, told: Told) -> RunFile:
    began = [attempt.started_unix for attempt in made.attempts if attempt.started_unix]
    return RunFile(
        run="",
        spec=made.spec.model_dump(mode="json"),
        phase=made.phase,
        synthetic=False,
        versions=made.versions,
        started_unix=min(began, default=0.0),
        ended_unix=max((attempt.ended_unix for attempt in made.attempts), default=0.0),
        attempts=made.attempts,
        verdict=made.verdict,
        reasons=made.reasons,
        imported=Imported(made.kind, str(source), time.time(), told.read, [*told.missing, *told.left_out]),
    )


def _problems(folder: RunFolder) -> list[str]:
    """A look at the tables' footers and the journal, so that damage is told now and not when somebody looks for a sample."""
    from harness.records.reader import Record

    record = Record(folder)
    record.journal()
    record.samples()
    record.timeline()
    if folder.gpus.is_dir():
        record.gpus()
    try:
        RunSpec.model_validate(record.run.spec)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        record.problems.append(f"spec.{'.'.join(map(str, first['loc']))}: {first['msg']}; the console cannot show its fleet")
    return record.problems


def _what(place: Path, given: Path, asked: Kind | None) -> tuple[Kind, Path]:
    """What lies there, and where it begins. Raises ImportProblem."""
    if place.is_file():
        return _what_file(place, asked)
    run = find_run_folder(place) if asked in (None, "run") else None
    if asked == "run":
        if run is None:
            raise ImportProblem(f"{given}: has no run.json, so it is no Paceline run{_there(place)}")
        return "run", run
    endpoints = _folder_of(place, SIGNS) if asked in (None, "endpoints") else None
    if asked == "endpoints":
        if endpoints is None:
            raise ImportProblem(f"{given}: has neither {EVENTS} nor result_summary.json nor final_snapshot.json{_there(place)}")
        return "endpoints", endpoints
    if asked == "loadgen":
        return "loadgen", place
    if run == place:
        return "run", place
    if endpoints == place:
        return "endpoints", place
    if _folder_of(place, LOGS) is not None and run is None:
        return "loadgen", place
    if run is not None:
        return "run", run
    if endpoints is not None:
        return "endpoints", endpoints
    raise ImportProblem(
        f"{given}: is neither a Paceline run (run.json) nor LoadGen's logs ({DETAIL_LOG}) nor a run of mlcommons/endpoints "
        f"({EVENTS}, result_summary.json){_there(place)}"
    )


def _what_file(file: Path, asked: Kind | None) -> tuple[Kind, Path]:
    """A file of a run stands for its folder."""
    if file.name == "run.json" and asked in (None, "run"):
        return "run", file.parent
    if file.name in LOGS and asked in (None, "loadgen"):
        return "loadgen", file.parent
    for sign in SIGNS:
        at = Path(sign)
        if file.name == at.name and asked in (None, "endpoints"):
            inside = len(at.parts) == 2 and file.parent.name == at.parts[0]
            return "endpoints", file.parent.parent if inside else file.parent
    raise ImportProblem(
        f"{file}: is neither an archive (.tar.gz, .zip) nor one of run.json, {', '.join(LOGS)}, {EVENTS}, result_summary.json "
        "and final_snapshot.json" + (f", as --as {asked} wants" if asked else "")
    )


def _folder_of(place: Path, signs: tuple[str, ...]) -> Path | None:
    """The first folder, `place` first, that has one of these files."""
    for seen, (folder, folders, _) in enumerate(os.walk(place)):
        if seen > _MOST_LOOKED_AT:
            return None
        folders.sort()
        if any(os.path.isfile(os.path.join(folder, sign)) for sign in signs):
            return Path(folder)
    return None


def _there(place: Path) -> str:
    try:
        names = sorted(os.listdir(place))
    except OSError as error:
        return f"; {error.strerror}"
    return f"; it has {', '.join(names[:8])}{' …' if len(names) > 8 else ''}" if names else "; it is empty"


def _archive_name(archive: Path) -> str:
    name = archive.name
    for ending in (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar", ".zip"):
        name = name.removesuffix(ending)
    return made_name(name)
