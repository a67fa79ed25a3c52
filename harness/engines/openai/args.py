"""`fleet.engine_args` of the openai engine, validated in one place before anything starts.

Where the server is: `base_urls`, or `command`, which starts one beside each replica. What it is: `server`, which decides
what may be asked of it beyond the OpenAI API. How tokens come back: `token_ids`. Placeholders in base_urls, command and
env are replaced by what the slot has; other braces (JSON in a command) stay as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.engines.base import ArgumentError, EngineContext, nearest
from harness.spec import RunSpec

WHERE = "fleet.engine_args"
ENDPOINTS = ("completions", "chat")
SERVERS = ("vllm", "sglang", "trtllm", "openai")
TOKEN_IDS = ("server", "tokenizer", "count")
PLACES = ("port", "node", "gpu", "ordinal", "devices", "role", "model", "served_model", "tp", "pp", "dp")
_PLACE = re.compile(r"\{([a-z_]+)\}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_KEYS = ("authorization", "x-api-key", "api-key")
_CLIENTS_OWN = ("accept-encoding", "connection", "content-length", "content-type", "host", "transfer-encoding")
_PAGES = ("/chat/completions", "/completions", "/models")  # of the API, which the engine adds itself
_NOT_IN_URL = re.compile(r"[^!-~]|[{}<>\"\\^`|]")
_RETURNS_IDS = ("vllm", "trtllm")
_PATHS = ("health_path", "metrics_path")
_WORDS = ("served_model", "api_key_env", "session_header", "tokenizer")
_FIRST_PORT, _MOST_PORT = 8000, 65_535


@dataclass(frozen=True, slots=True)
class OpenAIArgs:
    base_urls: tuple[str, ...] = ()  # without /v1; one (a template, or shared) or one a slot
    shared: bool = False
    command: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    port: int | None = None  # of gpu 0; None: any free one for a command, 8000 in a template
    server: str = "vllm"
    endpoint: str = "completions"
    served_model: str = ""
    token_ids: str = "server"
    tokenizer: str = ""  # "": model.path
    api_key_env: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    session_header: str = ""
    connect_s: float = 10.0
    first_token_s: float = 300.0
    read_s: float = 60.0  # between two chunks
    answer_mib: float = 32.0  # a longer answer is broken off
    health_path: str = "/health"
    start_s: float = 900.0
    stop_s: float = 2.0
    metrics_path: str = "/metrics"
    scrape_s: float = 1.0

    def identity(self, spec: RunSpec) -> dict[str, Any]:
        """What makes replicas different generators. Of a command the template: what differs by slot is a placeholder."""
        return {
            "server": self.server,
            "endpoint": self.endpoint,
            "served_model": self.served_model,
            "token_ids": self.token_ids,
            "command": list(self.command),
            "env": self.env,
            "sampling": spec.sampling.model_dump(mode="json"),
            "layout": spec.fleet.layout.model_dump(mode="json"),
        }

    @property
    def needs_tokenizer(self) -> bool:
        return self.endpoint == "chat" or self.token_ids == "tokenizer"

    def in_force(self) -> dict[str, Any]:
        """Every argument with the value that holds; of headers and env the names alone (values may be secrets)."""
        return {**asdict(self), "headers": sorted(self.headers), "env": sorted(self.env), "base_urls": len(self.base_urls)}

    def base_url(self, context: EngineContext) -> str:
        """Of this replica's server, when it is not ours to start."""
        url = self.base_urls[context.ordinal] if len(self.base_urls) > 1 else self.base_urls[0]
        port = (self.port or _FIRST_PORT) + context.gpu
        return filled(url, self.places(context, port))

    def places(self, context: EngineContext, port: int) -> dict[str, str]:
        spec, layout = context.spec, context.spec.fleet.layout
        first = context.gpu * layout.devices
        devices = ",".join(str(first + n) for n in range(layout.devices))
        values: tuple[Any, ...] = (
            port,
            context.node,
            context.gpu,
            context.ordinal,
            devices,
            context.role,
            spec.model.path or spec.model.name,
            self.served_model,
            layout.tp,
            layout.pp,
            layout.dp,
        )
        return dict(zip(PLACES, map(str, values), strict=True))


ARGUMENTS = tuple(OpenAIArgs.__dataclass_fields__)


def filled(text: str, places: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: places[found[1]], text)


def parse_args(args: Mapping[str, Any], spec: RunSpec) -> OpenAIArgs:
    """Raises ArgumentError with field, value and what would be right."""
    for name, value in args.items():
        if name not in ARGUMENTS:
            raise ArgumentError(f"{WHERE}.{name} = {value!r}: not an argument of the openai engine{nearest(name, ARGUMENTS)}")
    given: dict[str, Any] = {}
    for name, value in args.items():
        given[name] = _PARSERS.get(name, _PARSERS["*"])(name, value)
    server = given.get("server", "vllm")
    given.setdefault("served_model", spec.model.name)
    given.setdefault("token_ids", "server" if server in _RETURNS_IDS else "tokenizer")
    parsed = OpenAIArgs(**given)
    _check_where(parsed, spec)
    _check_tokens(parsed, spec)
    _check_sampling(parsed, spec)
    return parsed


def check_here(spec: RunSpec) -> None:
    """What must be on this machine before anything starts: the tokenizer, the key. Raises ArgumentError."""
    args = parse_args(spec.fleet.engine_args, spec)
    if args.needs_tokenizer:
        if args.tokenizer:
            tokenizer_file(args.tokenizer)
        else:
            tokenizer_file(str(spec.model.path), "model.path")
    if args.api_key_env:
        read_key(args.api_key_env)


def tokenizer_file(path: str, named: str = f"{WHERE}.tokenizer") -> Path:
    folder = Path(path).expanduser()
    file = folder / "tokenizer.json" if folder.is_dir() else folder
    if not file.is_file():
        raise ArgumentError(
            f"{named} = {path!r}: there is no {file}, which turns text into token ids; {WHERE}.tokenizer names a tokenizer.json "
            "or its folder"
        )
    return file


def read_key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ArgumentError(f"{WHERE}.api_key_env = {variable!r}: this variable is not set where the replica runs")
    if not (key.isascii() and key.isprintable()):
        raise ArgumentError(f"{WHERE}.api_key_env = {variable!r}: what this variable holds cannot be sent in a header")
    return key


# --- what belongs together --------------------------------------------------------------------------------------------


def _check_where(args: OpenAIArgs, spec: RunSpec) -> None:
    replicas, urls = spec.expected_replicas, args.base_urls
    if bool(urls) == bool(args.command):
        raise ArgumentError(
            f"{WHERE}: exactly one of base_urls (servers that run already) and command (one to start for each replica)"
        )
    last_port = (args.port or _FIRST_PORT) + spec.fleet.replicas_per_node - 1
    if last_port > _MOST_PORT and any("{port}" in word for word in (*urls, *args.command)):
        raise ArgumentError(
            f"{WHERE}.port = {args.port}: with {spec.fleet.replicas_per_node} replicas a node the last one would be at "
            f"{last_port}; at most {_MOST_PORT - spec.fleet.replicas_per_node + 1}"
        )
    if args.env and not args.command:
        raise ArgumentError(f"{WHERE}.env: only for a server that `command` starts")
    template = len(urls) == 1 and _PLACE.search(urls[0]) is not None
    if len(urls) > 1:
        if any(_PLACE.search(url) for url in urls):
            raise ArgumentError(f"{WHERE}.base_urls: a template must be the only entry; it stands for all replicas")
        if len(urls) != replicas:
            raise ArgumentError(f"{WHERE}.base_urls: {len(urls)} URLs for {replicas} replicas; one a slot, in roster order")
    if args.command and args.port is not None and spec.fleet.nodes > 1 and spec.cluster.kind == "local":
        raise ArgumentError(
            f"{WHERE}.port = {args.port}: {spec.fleet.nodes} nodes share this machine and would share their ports; leave it out, "
            "then each server gets a free one"
        )
    if args.shared:
        return
    if template and (shares := _shared_by(urls[0], spec)):
        raise ArgumentError(
            f"{WHERE}.base_urls = {urls[0]!r}: the same server for {shares}; use {{node}}, {{gpu}}, {{ordinal}} or {{port}}, "
            "or say shared = true"
        )
    if len(urls) == 1 and replicas > 1 and not template:
        raise ArgumentError(
            f"{WHERE}.base_urls = {urls[0]!r}: one server for {replicas} replicas; give one URL a slot, a template with "
            "{node}, {gpu}, {ordinal} or {port}, or say shared = true"
        )
    servers = [_same(url) for url in urls] if len(urls) > 1 else []
    if len(set(servers)) < len(servers):
        twice = next(url for url in urls if servers.count(_same(url)) > 1)
        raise ArgumentError(f"{WHERE}.base_urls: {twice!r} is there twice; say shared = true if that is meant")


def _shared_by(template: str, spec: RunSpec) -> str:
    """Which replicas a template does not tell apart; "" when none."""
    places = set(_PLACE.findall(template))
    if "ordinal" in places:
        return ""
    if spec.fleet.nodes > 1 and "node" not in places:
        return f"all {spec.fleet.nodes} nodes"
    if spec.fleet.replicas_per_node > 1 and not places & {"gpu", "port"}:
        return f"all {spec.fleet.replicas_per_node} replicas of a node"
    return ""


def _check_tokens(args: OpenAIArgs, spec: RunSpec) -> None:
    tokenizer = args.tokenizer or spec.model.path
    if args.token_ids == "tokenizer" and not tokenizer:
        raise ArgumentError(
            f"{WHERE}.token_ids: a server of kind {args.server!r} answers with text; set tokenizer (or model.path) to a folder "
            'with tokenizer.json, or token_ids = "count" for counts without ids'
        )
    if args.token_ids == "server" and args.server not in _RETURNS_IDS:
        raise ArgumentError(
            f'{WHERE}.token_ids = "server": a server of kind {args.server!r} returns no token ids; "tokenizer" or "count"'
        )
    if args.endpoint == "chat" and not tokenizer:
        raise ArgumentError(
            f'{WHERE}.endpoint = "chat": prompts are token ids here and chat takes text; set tokenizer (or model.path) to a '
            "folder with tokenizer.json"
        )
    if args.endpoint == "chat" and args.server == "trtllm" and args.token_ids == "server":
        raise ArgumentError(f'{WHERE}.token_ids = "server": trtllm returns ids on completions only; "tokenizer" or "count"')


def _check_sampling(args: OpenAIArgs, spec: RunSpec) -> None:
    if args.server == "openai":
        sampling = spec.sampling
        for name in ("top_k", "min_tokens", "ignore_eos", "stop_token_ids"):
            value = getattr(sampling, name)
            if value:
                raise ArgumentError(
                    f'sampling.{name} = {value!r}: not in the OpenAI API, so {WHERE}.server = "openai" cannot take it; '
                    f"leave it out or name the server: {', '.join(SERVERS[:-1])}"
                )
    if spec.fleet.split and args.server != "vllm":
        raise ArgumentError(
            f'{WHERE}.server = "{args.server}": the openai engine hands a KV cache over between servers of kind "vllm" only, '
            'and fleet.roles splits the work; use roles = ["both"]'
        )


# --- single values ----------------------------------------------------------------------------------------------------


def _urls(name: str, value: Any) -> tuple[str, ...]:
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not entries or not all(isinstance(url, str) for url in entries):
        raise ArgumentError(f'{WHERE}.{name} = {value!r}: must be a list of URLs such as "http://node1:8000", or one template')
    return tuple(_url(f"{WHERE}.{name}", url) for url in entries)


def _url(where: str, text: str) -> str:
    _check_places(where, text)
    trial = _PLACE.sub("1", text)
    try:
        parts = urlsplit(trial)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:
        good = False
    if not good or _NOT_IN_URL.search(trial):
        raise ArgumentError(f'{where} = {text!r}: must be like "http://node1:8000"')
    if parts.username or parts.password:
        raise ArgumentError(f"{where}: a key in a URL would be recorded; name its variable in api_key_env")
    url = text.rstrip("/")
    for page in _PAGES:
        if url.endswith(page):
            raise ArgumentError(f"{where} = {text!r}: leave out {page}, which is added; {url.removesuffix(page)!r} is right")
    return url.removesuffix("/v1").rstrip("/")


def _same(url: str) -> str:
    """Two URLs that are one server are equal in this form."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path}"


def _check_places(where: str, text: str) -> None:
    for place in _PLACE.findall(text):
        if place not in PLACES:
            raise ArgumentError(f"{where} = {text!r}: no placeholder {{{place}}}{nearest(place, PLACES)}")


def _command(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(word, str) for word in value):
        raise ArgumentError(f'{WHERE}.{name} = {value!r}: must be a list of words, like ["vllm", "serve", "{{model}}"]')
    if not value[0].strip() or any("\0" in word for word in value):
        raise ArgumentError(
            f"{WHERE}.{name} = {list(value)!r}: the first word must be a program, and no word can hold a null byte"
        )
    for word in value:
        _check_places(f"{WHERE}.{name}", word)
    if not any("{port}" in word for word in value):
        raise ArgumentError(f"{WHERE}.{name}: no word has {{port}}, so the server's place could not be known")
    return tuple(value)


def _table(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise ArgumentError(f"{WHERE}.{name} = {value!r}: must be a table of words")
    for key, word in value.items():
        if name == "headers":
            if not _HEADER.fullmatch(key) or not (word.isprintable() and word.isascii()):
                raise ArgumentError(f"{WHERE}.{name}.{key} = {word!r}: not a header; values are of printable ASCII characters")
            if key.lower() in _KEYS:
                raise ArgumentError(f"{WHERE}.{name}.{key}: a key here would be recorded; name its variable in api_key_env")
            if key.lower() in _CLIENTS_OWN:
                raise ArgumentError(f"{WHERE}.{name}.{key} = {word!r}: the client sets this one itself; leave it out")
        else:
            if not key or "=" in key or "\0" in key + word:
                raise ArgumentError(f"{WHERE}.{name}.{key} = {word!r}: not an environment variable")
            _check_places(f"{WHERE}.{name}.{key}", word)
    return dict(value)


def _choice(name: str, value: Any) -> str:
    valid = {"server": SERVERS, "endpoint": ENDPOINTS, "token_ids": TOKEN_IDS}[name]
    if value not in valid:
        raise ArgumentError(f"{WHERE}.{name} = {value!r}: unknown{nearest(str(value), valid)}")
    return str(value)


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ArgumentError(f"{WHERE}.{name} = {value!r}: must be a word")
    if name in _PATHS and value and not value.startswith("/"):
        raise ArgumentError(f'{WHERE}.{name} = {value!r}: must begin with "/", or be "" for none')
    if name == "session_header" and value and not _HEADER.fullmatch(value):
        raise ArgumentError(f'{WHERE}.{name} = {value!r}: must be the name of a header, like "X-Session-ID"')
    if name == "api_key_env" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ArgumentError(f"{WHERE}.{name}: must be the name of an environment variable, never the key itself")
    if name in ("served_model", "tokenizer") and not value:
        raise ArgumentError(f"{WHERE}.{name} = '': must not be empty; leave it out for the default")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(f"{WHERE}.{name} = {value!r}: must be true or false")
    return value


def _port(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_PORT:
        raise ArgumentError(f"{WHERE}.{name} = {value!r}: must be a whole number from 1 to 65535")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 86_400:
        raise ArgumentError(f"{WHERE}.{name} = {value!r}: must be a number above 0, at most 86400")
    return float(value)


_PARSERS: dict[str, Any] = {
    "base_urls": _urls,
    "command": _command,
    "env": _table,
    "headers": _table,
    "server": _choice,
    "endpoint": _choice,
    "token_ids": _choice,
    "shared": _flag,
    "port": _port,
    **dict.fromkeys((*_PATHS, *_WORDS), _word),
    "*": _number,
}
