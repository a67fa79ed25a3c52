"""Arguments of the openai engine: wrong ones are refused before anything starts, with what would be right."""

from __future__ import annotations

import re
from typing import Any

import pytest
from openai_kit import spec_of

from harness.engines import registry
from harness.engines.base import EngineContext, EngineError
from harness.engines.openai.args import parse_args

URL = "http://node1:8000"
COMMAND = ["serve", "{model}", "--port", "{port}"]
TWO = {"fleet": {"replicas_per_node": 2}}


@pytest.mark.parametrize(
    ("args", "tables", "told"),
    [
        ({}, {}, "fleet.engine_args: exactly one of base_urls (servers that run already) and command"),
        ({"base_urls": [URL], "command": COMMAND}, {}, "fleet.engine_args: exactly one of base_urls"),
        (
            {"base_url": [URL]},
            {},
            "fleet.engine_args.base_url = ['http://node1:8000']: not an argument of the openai engine; did",
        ),
        ({"base_urls": ["node1:8000"]}, {}, "fleet.engine_args.base_urls = 'node1:8000': must be like \"http://node1:8000\""),
        ({"base_urls": 7}, {}, "fleet.engine_args.base_urls = 7: must be a list of URLs"),
        ({"base_urls": ["http://u:p@node1"]}, {}, "name its variable in api_key_env"),
        ({"base_urls": [URL]}, TWO, "one server for 2 replicas; give one URL a slot, a template"),
        ({"base_urls": [URL] * 3}, TWO, "fleet.engine_args.base_urls: 3 URLs for 2 replicas"),
        ({"base_urls": [URL] * 2}, TWO, "is there twice; say shared = true"),
        ({"base_urls": ["http://n{nodes}:1"]}, {}, 'no placeholder {nodes}; did you mean "node"?'),
        ({"base_urls": ["http://a{gpu}", "http://b{gpu}"]}, TWO, "a template must be the only entry"),
        ({"command": ["serve", "--port", "8000"]}, {}, "no word has {port}"),
        ({"command": "vllm serve"}, {}, "fleet.engine_args.command = 'vllm serve': must be a list of words"),
        ({"command": [*COMMAND, "{prot}"]}, {}, 'no placeholder {prot}; did you mean "port"?'),
        ({"base_urls": [URL], "env": {"A": "1"}}, {}, "fleet.engine_args.env: only for a server that `command` starts"),
        ({"base_urls": [URL], "server": "vlm"}, {}, "fleet.engine_args.server = 'vlm': unknown; did you mean \"vllm\"?"),
        ({"base_urls": [URL], "endpoint": "responses"}, {}, "unknown; valid: completions, chat"),
        ({"base_urls": [URL], "endpoint": "chat"}, {}, "chat takes text; set tokenizer (or model.path)"),
        (
            {"base_urls": [URL], "server": "sglang"},
            {},
            'set tokenizer (or model.path) to a folder with tokenizer.json, or token_ids = "c',
        ),
        ({"base_urls": [URL], "server": "sglang", "token_ids": "server"}, {}, "returns no token ids"),
        ({"base_urls": [URL], "read_s": 0}, {}, "fleet.engine_args.read_s = 0: must be a number above 0"),
        ({"base_urls": [URL], "read_s": True}, {}, "fleet.engine_args.read_s = True: must be a number above 0"),
        ({"base_urls": [URL], "port": 70_000}, {}, "fleet.engine_args.port = 70000: must be a whole number from 1 to 65535"),
        ({"base_urls": [URL], "shared": 1}, {}, "fleet.engine_args.shared = 1: must be true or false"),
        ({"base_urls": [URL], "health_path": "health"}, {}, 'must begin with "/"'),
        ({"base_urls": [URL], "api_key_env": "sk-123"}, {}, "must be the name of an environment variable, never the key itself"),
        ({"base_urls": [URL], "headers": {"Authorization": "Bearer x"}}, {}, "name its variable in api_key_env"),
        ({"base_urls": [URL], "headers": {"X": "a\r\nB: c"}}, {}, "not a header"),
        ({"base_urls": [URL], "headers": {"X": "\u00fc"}}, {}, "not a header; values are of printable ASCII characters"),
        ({"base_urls": [URL], "headers": {"Content-Length": "1"}}, {}, "the client sets this one itself; leave it out"),
        ({"base_urls": ["http://a b:1"]}, {}, "must be like"),
        ({"base_urls": ["http://a:1#b"]}, {}, "must be like"),
        ({"base_urls": ["http://a.{x.y}:1"]}, {}, "must be like"),
        ({"base_urls": [URL + "/v1/completions"]}, {}, "leave out /completions, which is added; 'http://node1:8000/v1' is right"),
        ({"base_urls": [URL + "/v1/chat/completions/"]}, {}, "leave out /chat/completions, which is added"),
        ({"base_urls": ["http://NODE1", "http://node1:80/v1"]}, TWO, "is there twice"),
        ({"base_urls": ["http://a:{port}"]}, {"fleet": {"nodes": 2, "replicas_per_node": 2}}, "the same server for all 2 nodes"),
        ({"base_urls": ["http://{node}:1"]}, TWO, "the same server for all 2 replicas of a node"),
        ({"base_urls": ["http://a:{port}"], "port": 65_535}, TWO, "the last one would be at 65536; at most 65534"),
        ({"command": COMMAND, "port": 8000}, {"fleet": {"nodes": 2, "replicas_per_node": 1}}, "2 nodes share this machine"),
        ({"command": ["", "{port}"]}, {}, "the first word must be a program"),
        ({"command": ["serve", "{port}", "\0"]}, {}, "no word can hold a null byte"),
        ({"command": COMMAND, "env": {"A=B": "1"}}, {}, "fleet.engine_args.env.A=B = '1': not an environment variable"),
        ({"base_urls": [URL], "api_key_env": "NOT_SET_HERE"}, {}, "'NOT_SET_HERE': this variable is not set"),
        ({"base_urls": [URL], "server": "sglang", "tokenizer": "/nowhere"}, {}, "tokenizer = '/nowhere': there is no /nowhere"),
        (
            {"base_urls": [URL], "server": "sglang"},
            {"model": {"path": "/nowhere"}},
            "model.path = '/nowhere': there is no /nowhere, which turns text into token ids",
        ),
        (
            {"base_urls": [URL], "server": "openai", "token_ids": "count"},
            {"sampling": {"top_k": 5}},
            "sampling.top_k = 5: not in the OpenAI API",
        ),
        (
            {"base_urls": [URL], "server": "sglang", "token_ids": "count", "shared": True},
            {"fleet": {"replicas_per_node": 2, "roles": ["prefill", "decode"]}},
            'hands a KV cache over between servers of kind "vllm" only',
        ),
    ],
)
def test_what_is_wrong_is_said_with_what_would_be_right(args: dict[str, Any], tables: dict[str, Any], told: str) -> None:
    with pytest.raises(EngineError, match=re.escape(told)):
        registry.check_args(spec_of(args, **tables))


def test_a_key_is_never_repeated_in_a_message() -> None:
    with pytest.raises(EngineError) as told:
        registry.check_args(spec_of({"base_urls": [URL], "api_key_env": "sk-123"}))
    assert "sk-123" not in str(told.value)


def context(args: dict[str, Any], gpu: int = 0, **tables: Any) -> EngineContext:
    return EngineContext(spec_of(args, **tables), f"node000/gpu{gpu}", 0, gpu, gpu, "i0", 0)


def test_each_slot_has_its_own_server() -> None:
    eight = {"fleet": {"replicas_per_node": 8}}
    listed = {"base_urls": [f"http://n{i}:1/v1" for i in range(8)]}
    template = {"base_urls": "http://gpu-{gpu}.node{node}:{port}"}
    for args, url in ((listed, "http://n3:1"), (template, "http://gpu-3.node0:8003")):
        there = context(args, 3, **eight)
        assert parse_args(args, there.spec).base_url(there) == url


def test_placeholders_tell_a_command_its_devices_and_json_stays_as_it_is() -> None:
    args = {"command": [*COMMAND, "--tp", "{tp}", '{"kv_connector": "{role}"}'], "env": {"HIP_VISIBLE_DEVICES": "{devices}"}}
    there = context(args, 1, fleet={"replicas_per_node": 2, "layout": {"tp": 4, "device": "rocm"}}, model={"path": "/m"})
    places = parse_args(args, there.spec).places(there, 1234)
    from harness.engines.openai.args import filled

    filled_in = [filled(word, places) for word in args["command"]]
    assert filled_in == ["serve", "/m", "--port", "1234", "--tp", "4", '{"kv_connector": "both"}']
    assert filled("{devices}", places) == "4,5,6,7"


def test_only_a_server_that_is_started_here_takes_devices() -> None:
    tables = {"fleet": {"layout": {"tp": 4, "dp": 2}}}
    assert registry.devices(spec_of({"base_urls": [URL]}, **tables)) == 0
    assert registry.devices(spec_of({"command": COMMAND}, **tables)) == 8
    assert registry.default_slots_per_process(spec_of({"command": COMMAND})) == 1
    assert registry.cannot_start("openai") == ""


def test_replicas_of_other_urls_pool_and_of_other_sampling_do_not() -> None:
    one = registry.args_hash(spec_of({"base_urls": [URL]}))
    assert one == registry.args_hash(spec_of({"base_urls": ["http://node2:1"], "read_s": 5}))
    assert one != registry.args_hash(spec_of({"base_urls": [URL]}, sampling={"temperature": 1.0}))
    assert one != registry.args_hash(spec_of({"command": COMMAND}))


def test_values_of_headers_and_env_are_not_among_the_facts() -> None:
    args = {"command": COMMAND, "env": {"HF_TOKEN": "hf_secret"}, "headers": {"X-Key": "other_secret"}}
    told = str(parse_args(args, spec_of(args)).in_force())
    assert "HF_TOKEN" in told
    assert "secret" not in told
