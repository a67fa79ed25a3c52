"""Who may do what: tokens with rules of their own, and tokens of ServiceAccounts, whose rules are the Roles bound to them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from .errors import ApiError, Json
from .store import Store

_ALL = ("*",)


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a Role. `namespace` None: everywhere, and what has no namespace too."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ("",)
    resources: tuple[str, ...] = _ALL  # "pods", "pods/log", "*"
    namespace: str | None = None
    names: tuple[str, ...] = ()

    def allows(self, ask: Ask) -> bool:
        wanted = f"{ask.resource}/{ask.subresource}" if ask.subresource else ask.resource
        return (
            (self.namespace is None or self.namespace == ask.namespace)
            and _in(ask.verb, self.verbs)
            and _in(ask.group, self.groups)
            and (_in(wanted, self.resources) or (bool(ask.subresource) and f"*/{ask.subresource}" in self.resources))
            and (not self.names or ask.name in self.names)
        )


@dataclass(frozen=True, slots=True)
class Ask:
    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(slots=True)
class User:
    name: str
    rules: tuple[Rule, ...] = ()
    account: tuple[str, str] | None = None  # namespace and name of a ServiceAccount
    expires_unix_s: float | None = None
    groups: tuple[str, ...] = field(default=("system:authenticated",))


EVERYTHING = Rule(_ALL, _ALL, _ALL)
_ANONYMOUS = User("system:anonymous", groups=("system:unauthenticated",))


class Access:
    def __init__(self, store: Store, *, insecure: bool = False) -> None:
        self._store = store
        self._nobody = User("system:admin", (EVERYTHING,)) if insecure else _ANONYMOUS
        self._users: dict[str, User] = {}
        self.admin_token = self.token("kubernetes-admin", EVERYTHING)

    def token(self, user: str, *rules: Rule, valid_s: float | None = None) -> str:
        """A new token, right away; `valid_s` by the wall clock, as a client sees it."""
        text = secrets.token_urlsafe(24)
        self._users[text] = User(user, rules, expires_unix_s=None if valid_s is None else time.time() + valid_s)
        return text

    def account_token(self, ns: str, name: str) -> str:
        """What a pod finds mounted: its rights are those of the Roles and ClusterRoles bound to the account, at each call."""
        text = secrets.token_urlsafe(24)
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{ns}", "system:authenticated")
        self._users[text] = User(f"system:serviceaccount:{ns}:{name}", account=(ns, name), groups=groups)
        return text

    def expire(self, token: str) -> None:
        self._users[token].expires_unix_s = 0.0

    def change(self, token: str, *rules: Rule) -> None:
        """Other rights for the same token."""
        self._users[token].rules = rules

    def who(self, authorization: str | None) -> User:
        """No credentials at all is an anonymous user, who may nothing; wrong ones are a 401."""
        if not authorization:
            return self._nobody
        scheme, _, token = authorization.partition(" ")
        user = self._users.get(token.strip()) if scheme.lower() == "bearer" else None
        if user is None or (user.expires_unix_s is not None and user.expires_unix_s <= time.time()):
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return user

    def allows(self, user: User, ask: Ask) -> bool:
        return any(rule.allows(ask) for rule in self._rules(user))

    def check(self, user: User, ask: Ask) -> None:
        if self.allows(user, ask):
            return
        where = f'in the namespace "{ask.namespace}"' if ask.namespace else "at the cluster scope"
        resource = f"{ask.resource}/{ask.subresource}" if ask.subresource else ask.resource
        plural = f"{ask.resource}.{ask.group}" if ask.group else ask.resource
        named = f'{plural} "{ask.name}"' if ask.name else plural
        message = (
            f'{named} is forbidden: User "{user.name}" cannot {ask.verb} resource "{resource}" in API group "{ask.group}" {where}'
        )
        details = {"name": ask.name, "group": ask.group, "kind": ask.resource}
        raise ApiError(403, "Forbidden", message, {name: value for name, value in details.items() if value})

    def review(self, user: User, body: Json) -> Json:
        """SelfSubjectAccessReview."""
        asked = (body.get("spec") or {}).get("resourceAttributes")
        if not isinstance(asked, dict):
            raise ApiError(
                422,
                "Invalid",
                'SelfSubjectAccessReview.authorization.k8s.io "" is invalid: spec.resourceAttributes: Invalid value: null: '
                "exactly one of nonResourceAttributes or resourceAttributes must be specified",
            )
        names = ("verb", "group", "resource", "subresource", "namespace", "name")
        ask = Ask(**{name: asked.get(name) or "" for name in names})
        allowed = self.allows(user, ask)
        return {
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "metadata": {},
            "spec": body["spec"],
            "status": {"allowed": allowed} | ({"reason": "RBAC: allowed by a rule of the fake"} if allowed else {}),
        }

    def rules_review(self, user: User, body: Json) -> Json:
        """SelfSubjectRulesReview: everything the user may do in one namespace."""
        ns = (body.get("spec") or {}).get("namespace")
        if not ns:
            raise ApiError(400, "BadRequest", "no namespace on request")
        rules = [rule for rule in self._rules(user) if rule.namespace in (None, ns)]
        reviews = [
            {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews"]},
            {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectrulesreviews"]},
        ]
        found = [
            {"verbs": list(rule.verbs), "apiGroups": list(rule.groups), "resources": list(rule.resources)}
            | ({"resourceNames": list(rule.names)} if rule.names else {})
            for rule in rules
        ]
        return {
            "kind": "SelfSubjectRulesReview",
            "apiVersion": "authorization.k8s.io/v1",
            "metadata": {},
            "spec": {},
            "status": {"resourceRules": reviews + found, "nonResourceRules": [], "incomplete": False},
        }

    def _rules(self, user: User) -> Iterator[Rule]:
        yield from user.rules
        if user.account is None:
            return
        for binding in self._store.list("ClusterRoleBinding"):
            if _binds(binding, user.account, ""):
                yield from self._of("ClusterRole", "", binding["roleRef"]["name"], None)
        for binding in self._store.list("RoleBinding"):
            ns = binding["metadata"]["namespace"]
            if _binds(binding, user.account, ns):
                yield from self._of(binding["roleRef"]["kind"], ns, binding["roleRef"]["name"], ns)

    def _of(self, kind: str, ns: str, name: str, valid_in: str | None) -> Iterator[Rule]:
        role = self._store.get(kind, ns, name)
        for rule in (role or {}).get("rules") or ():
            yield Rule(
                tuple(rule.get("verbs") or ()),
                tuple(rule.get("apiGroups") or ()),
                tuple(rule.get("resources") or ()),
                valid_in,
                tuple(rule.get("resourceNames") or ()),
            )


def _binds(binding: Json, account: tuple[str, str], ns: str) -> bool:
    for subject in binding.get("subjects") or ():
        if subject.get("kind") == "ServiceAccount" and (subject.get("namespace") or ns, subject["name"]) == account:
            return True
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{account[0]}", "system:authenticated")
        if subject.get("kind") == "Group" and subject.get("name") in groups:
            return True
    return False


def _in(value: str, allowed: tuple[str, ...]) -> bool:
    return value in allowed or "*" in allowed
