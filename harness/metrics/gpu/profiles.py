"""Profiles: what each exporter calls the roles, by TOML files in profiles/ and by files of the user's own.

    name = "amd-dme"
    title = "AMD Device Metrics Exporter"
    probe = ["gpu_gfx_activity"]           # one of these is on its pages (probe_labels: with these labels not empty)
    prefixed = true                        # metrics.gpu.prefix stands before its names
    [labels]                               # labels that tell whose a series is, the first that is not empty counts
    host = ["hostname"]
    [roles.clock_ratio]                    # or [[roles.clock_ratio]] several times: the first step with a value counts
    metric = "gpu_clock"                   # or several in order of preference; worst_of: the largest of several
    where = { clock_type = "system" }
    of = "gpu_max_clock"
    [not_collected]
    error_code = "why, in words"

`how`: value; counter (a running count); mean (of the window); growth (a second, over the window; with `of` against the growth
of that, which makes a residency a share of time). `scale` brings it to the role's unit; `limit`: such values mean "blank".
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from harness.metrics.gpu.base import SeriesKey
from harness.metrics.gpu.recipes import SENTINEL, Fold, How, Leaf, Recipe, Step
from harness.metrics.gpu.roles import ROLES, Role
from harness.metricspec import GpuSourceSpec

WINDOW_S: Final = 60.0  # roles that are shares of time tell of the last minute
_METRIC = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PORT = re.compile(r":\d{1,5}$")

KeyField = Literal["host", "gpu", "uuid", "pci", "partition", "pod", "slot", "engine"]
KEY_FIELDS: Final[tuple[KeyField, ...]] = ("host", "gpu", "uuid", "pci", "partition", "pod", "slot", "engine")


# --- the files ---------------------------------------------------------------------------------------------------------


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _names(value: tuple[str, ...], form: re.Pattern[str], what: str) -> tuple[str, ...]:
    for name in value:
        if not form.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a {what}")
    return value


def _listed(value: object) -> object:
    """One name may stand without brackets."""
    return [value] if isinstance(value, str) else value


class StepTable(_Table):
    metric: tuple[str, ...] = ()
    worst_of: tuple[str, ...] = ()
    plus: tuple[str, ...] = ()
    of: str | None = None
    how: How = "value"
    where: dict[str, str] = {}
    first_partition: bool = False
    fold: Fold = "max"
    scale: float = Field(1.0, gt=0)
    limit: float = Field(SENTINEL, gt=0)

    _lists = field_validator("metric", "worst_of", "plus", mode="before")(_listed)

    @field_validator("metric", "worst_of", "plus")
    @classmethod
    def _are_metrics(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _names(value, _METRIC, "metric")

    @field_validator("of")
    @classmethod
    def _is_metric(cls, value: str | None) -> str | None:
        return value if value is None else _names((value,), _METRIC, "metric")[0]

    @field_validator("where")
    @classmethod
    def _are_labels(cls, value: dict[str, str]) -> dict[str, str]:
        _names(tuple(value), _LABEL, "label")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> StepTable:
        if bool(self.metric) == bool(self.worst_of):
            raise ValueError("give metric (in order of preference) or worst_of (the largest counts), one of the two")
        return self

    def steps(self, partition_label: str) -> list[Step]:
        def leaf(name: str) -> Leaf:
            first = partition_label if self.first_partition else ""
            return Leaf(name, tuple(sorted(self.where.items())), first, self.how, self.fold, self.limit)

        of = None if self.of is None else leaf(self.of)
        plus = tuple(leaf(name) for name in self.plus)
        heads = [tuple(self.worst_of)] if self.worst_of else [(name,) for name in self.metric]
        return [Step(tuple(map(leaf, head)), plus, of, self.scale, self.how == "growth") for head in heads]


class LabelTable(_Table):
    host: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    uuid: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()
    pod: tuple[str, ...] = ()
    slot: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()

    _lists = field_validator("*", mode="before")(_listed)

    @field_validator("*")
    @classmethod
    def _are_labels(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _names(value, _LABEL, "label")


class ProfileTable(_Table):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str = Field(min_length=1)
    probe: tuple[str, ...] = Field(min_length=1)
    probe_labels: tuple[str, ...] = ()
    instead_of: tuple[str, ...] = Field((), description="Profiles that are left out where this one is found")
    prefixed: bool = False
    labels: LabelTable
    roles: dict[str, tuple[StepTable, ...]] = Field(min_length=1)
    absent: dict[str, str] = Field({}, description="Role → why an exporter of this kind may not show it")
    not_collected: dict[str, str] = {}

    _lists = field_validator("probe", "probe_labels", "instead_of", mode="before")(_listed)

    @field_validator("probe")
    @classmethod
    def _are_metrics(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _names(value, _METRIC, "metric")

    @field_validator("probe_labels")
    @classmethod
    def _are_labels(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _names(value, _LABEL, "label")

    @field_validator("roles", mode="before")
    @classmethod
    def _one_step_or_more(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {role: [steps] if isinstance(steps, dict) else steps for role, steps in value.items()}

    @field_validator("roles", "absent", "not_collected")
    @classmethod
    def _are_roles(cls, value: dict[str, object]) -> dict[str, object]:
        for name in value:
            if name not in ROLES:
                raise ValueError(f"{name!r} is not a role; roles are {', '.join(ROLES)}")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> ProfileTable:
        if both := sorted(set(self.roles) & set(self.not_collected)):
            raise ValueError(f"{', '.join(both)}: stands in roles and in not_collected")
        if loose := sorted(set(self.absent) - set(self.roles)):
            raise ValueError(f"{', '.join(loose)}: stands in absent, but roles has no recipe for it; not_collected says why")
        return self


# --- what is read from them --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    title: str
    probe: tuple[str, ...]  # metrics of which at least one is there, without prefix
    probe_labels: tuple[str, ...]
    instead_of: tuple[str, ...]
    prefixed: bool
    labels: Mapping[KeyField, tuple[str, ...]]  # in order of preference
    recipes: Mapping[str, Recipe]
    not_collected: Mapping[str, str]

    @property
    def by(self) -> tuple[str, ...]:
        """All labels that tell whose a series is: what PromQL groups by."""
        return tuple(dict.fromkeys(label for labels in self.labels.values() for label in labels))

    @property
    def engine(self) -> bool:
        """It is of engines, not of GPUs."""
        return all(ROLES[role].engine for role in self.recipes)

    def prefix(self, spec_prefix: str) -> str:
        return spec_prefix if self.prefixed else ""

    def probe_promql(self, matchers: str = "", prefix: str = "") -> str:
        """A scalar's worth: how many series tell that this exporter is there; an empty answer: none."""
        names = "|".join(f"{self.prefix(prefix)}{name}" for name in self.probe)
        parts = [f'__name__=~"{names}"', *(f'{label}!=""' for label in self.probe_labels)]
        if matchers.strip():
            parts.append(matchers.strip().strip(","))
        return f"count({{{','.join(parts)}}})"

    def key_of(self, labels: Mapping[str, str], host: str = "") -> SeriesKey:
        """`host`: where the page came from, for exporters that do not say."""
        found: dict[str, str] = {}
        for name, candidates in self.labels.items():
            for label in candidates:
                if value := labels.get(label, ""):
                    found[name] = _PORT.sub("", value) if name == "host" and label.endswith("instance") else value
                    break
        if host and "host" not in found:
            found["host"] = host
        return SeriesKey(**found)


def load(spec: GpuSourceSpec) -> list[Profile]:
    """Those of the spec, or all there are. Raises ValueError with file, field and value."""
    found: dict[str, Profile] = dict(built_in())
    for path in spec.profile_files:
        try:
            with open(os.path.expanduser(path), "rb") as file:
                text = file.read().decode()
        except OSError as error:
            raise ValueError(f"metrics.gpu.profile_files: {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"metrics.gpu.profile_files: {path} is not a text file in UTF-8") from None
        profile = read_profile(text, path)
        found[profile.name] = profile  # one of ours may be replaced
    for name in spec.profiles:
        if name not in found:
            raise ValueError(f"metrics.gpu.profiles: there is no profile {name!r}; there are {', '.join(sorted(found))}")
    return [found[name] for name in spec.profiles] if spec.profiles else list(found.values())


@cache
def built_in() -> Mapping[str, Profile]:
    folder = resources.files("harness.metrics.gpu") / "profiles"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    made = [read_profile(file.read_text(encoding="utf-8"), file.name) for file in files]
    return {profile.name: profile for profile in made}


def read_profile(text: str, file: str) -> Profile:
    try:
        table = ProfileTable.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file}: not TOML: {error}") from None
    except ValidationError as error:
        raise ValueError("\n".join(_sentences(error, file))) from None
    labels = {field: value for field in KEY_FIELDS if (value := getattr(table.labels, field))}
    by = tuple(dict.fromkeys(label for each in labels.values() for label in each))
    partition = table.labels.partition[0] if table.labels.partition else ""
    recipes = {
        role: Recipe(
            role, tuple(s for each in steps for s in each.steps(partition)), by, table.prefixed, table.absent.get(role, "")
        )
        for role, steps in table.roles.items()
    }
    return Profile(
        table.name, table.title, table.probe, table.probe_labels, table.instead_of, table.prefixed, labels, recipes,
        table.not_collected,
    )  # fmt: skip


def _sentences(error: ValidationError, file: str) -> list[str]:
    told = []
    for one in error.errors(include_url=False):
        where = ".".join(str(part) for part in one["loc"]) or "the file"
        if one["type"] == "extra_forbidden":
            told.append(f"{file}: {where}: there is no such field")
        elif one["type"] == "missing":
            told.append(f"{file}: {where}: has to be given")
        else:
            value = one["input"]
            shown = f" (it is {value!r})" if isinstance(value, (str, int, float, bool)) else ""
            told.append(f"{file}: {where}: {one['msg'].removeprefix('Value error, ')}{shown}")
    return told


# --- which of them, and why not ----------------------------------------------------------------------------------------


def in_use(profiles: Sequence[Profile], there: Callable[[Profile], bool]) -> list[Profile]:
    """Those whose probe was found, without the more general ones that one of them stands in for."""
    found = [profile for profile in profiles if there(profile)]
    covered = {name for profile in found for name in profile.instead_of}
    return [profile for profile in found if profile.name not in covered]


def why_missing(role: str, active: Sequence[Profile], prefix: str = "") -> str:
    """Why nobody gives this role, where `active` profiles answered; in words for a screen."""
    if not active:
        return "no known exporter's metrics are there"
    known: Role = ROLES[role]
    reasons = [reason for profile in active if (reason := _why_of(role, profile, prefix))]
    if reasons:
        return "; ".join(reasons)
    others = ", ".join(profile.title for profile in active)
    return f"no metrics of {'engines' if known.engine else 'GPUs'} are there, only those of {others}"


def _why_of(role: str, profile: Profile, prefix: str) -> str:
    if role in profile.not_collected:
        return f"{profile.title}: {profile.not_collected[role]}"
    recipe = profile.recipes.get(role)
    if recipe is None:
        return ""
    names = recipe.metrics(prefix)
    shown = " or ".join(names[:3]) + (" …" if len(names) > 3 else "")
    return f"{profile.title} shows no {shown}" + (f" ({recipe.absent})" if recipe.absent else "")


def window_s(resolution_s: float) -> float:
    """Over which growth and means are taken: the last minute, or as long as four samples need."""
    return max(WINDOW_S, 4 * resolution_s) if resolution_s > 0 else WINDOW_S
