"""Which fields a kind has, taken from the models of the `kubernetes` package: they are generated from the server's API.

Imported on first use only: the models take most of a second.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Iterator
from typing import Any

from .errors import Json

_MODELS = {"Event": "CoreV1Event", "EndpointSlice": "V1EndpointSlice"}


def unknown_fields(kind: str, obj: Json) -> list[str]:
    """Paths as the API server writes them: .spec.template.spec.containers[0].imagee; empty for a kind without a model."""
    model = _model(_MODELS.get(kind, f"V1{kind}"))
    return [] if model is None else list(_unknown(model, obj, ""))


def without(obj: Json, paths: list[str]) -> Json:
    """In place: what a server that is not strict does with unknown fields."""
    for path in paths:
        parts: list[str | int] = [int(n) if n else name for name, n in re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", path)]
        holder: Any = obj
        for part in parts[:-1]:
            holder = holder[part]
        holder.pop(parts[-1], None)
    return obj


def _unknown(model: Any, value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    fields = _fields(model)
    for name, inner in value.items():
        path = f"{at}.{name}"
        if name not in fields:
            yield path
            continue
        nested, many = fields[name]
        if nested is None:
            continue
        if many == "list" and isinstance(inner, list):
            for i, item in enumerate(inner):
                yield from _unknown(nested, item, f"{path}[{i}]")
        elif many == "dict" and isinstance(inner, dict):
            for key, item in inner.items():
                yield from _unknown(nested, item, f"{path}.{key}")
        elif not many:
            yield from _unknown(nested, inner, path)


@functools.cache
def _fields(model: Any) -> dict[str, tuple[Any, str]]:
    """JSON name → (model of the value or None, "" | list | dict)."""
    if not hasattr(model, "model_fields"):  # releases before 37: plain classes
        types = {name: str(text) for name, text in model.openapi_types.items()}
        found = {}
        for name, json_name in model.attribute_map.items():
            kind = re.sub(r"^(list\[|dict\(str, )|[\])]$", "", types[name])
            many = "list" if types[name].startswith("list") else "dict" if types[name].startswith("dict") else ""
            found[json_name] = (_model(kind), many)
        return found
    fields = {}
    for name, field in model.model_fields.items():
        choices = getattr(field.validation_alias, "choices", None)
        fields[str(choices[0]) if choices else name] = _nested(field.annotation)
    return fields


def _nested(annotation: Any) -> tuple[Any, str]:
    if hasattr(annotation, "model_fields"):
        return annotation, ""
    origin = typing.get_origin(annotation)
    for inner in typing.get_args(annotation):
        model, many = _nested(inner)
        if model is not None:
            return model, {list: "list", dict: "dict"}.get(origin, many)
    return None, ""


@functools.cache
def _model(name: str) -> Any:
    from kubernetes.client import models

    return getattr(models, name, None)
