"""What an API server says when it says no: an exception with the fields of a Status, and the usual ones by name."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class ApiError(Exception):
    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> Json:
        body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        if not self.reason:
            del body["reason"]
        return body


def qualified(plural: str, group: str) -> str:
    """jobs.batch; plain pods for the core group."""
    return f"{plural}.{group}" if group else plural


def not_found(plural: str, group: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{qualified(plural, group)} "{name}" not found', _about(plural, group, name))


def already_exists(plural: str, group: str, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{qualified(plural, group)} "{name}" already exists', _about(plural, group, name))


def conflict(plural: str, group: str, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return ApiError(409, "Conflict", message, _about(plural, group, name))


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def internal(message: str) -> ApiError:
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})


def expired(message: str = "The resourceVersion for the provided watch is too old.") -> ApiError:
    return ApiError(410, "Expired", message)


class Cause:
    """One entry of the list that makes a 422."""

    def __init__(self, field: str, reason: str, text: str) -> None:
        self.field = field
        self.reason = reason
        self.text = text

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


def required(field: str, text: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", f"Required value{': ' + text if text else ''}")


def invalid(field: str, value: object, text: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else _shown(value)
    return Cause(field, "FieldValueInvalid", f"Invalid value: {shown}: {text}")


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def unprocessable(kind: str, group: str, name: str, causes: list[Cause]) -> ApiError:
    listed = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
    details = {
        "name": name,
        "group": group,
        "kind": kind,
        "causes": [{"reason": cause.reason, "message": cause.text, "field": cause.field} for cause in causes],
    }
    shown = f"{kind}.{group}" if group else kind
    return ApiError(422, "Invalid", f'{shown} "{name}" is invalid: {listed}', {k: v for k, v in details.items() if v != ""})


def _about(plural: str, group: str, name: str) -> Json:
    return {"name": name, "group": group, "kind": plural} if group else {"name": name, "kind": plural}
