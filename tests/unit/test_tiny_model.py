"""The tiny model: its files, that they say what they are, and that the same seed gives the same bytes."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from console.cli import real_demo
from console.cli.app import main
from console.cli.errors import BadInput
from console.cli.tiny_model import kept_model
from harness.datasets.text import Texts
from harness.engines.tinymodel import FILES, KINDS, Kind, write_tiny_model
from harness.specfile import load_spec

every_kind = pytest.mark.parametrize("kind", KINDS)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@every_kind
def test_the_same_seed_gives_the_same_files_and_another_seed_other_weights(kind: Kind, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_tiny_model(tmp_path / name, kind, seed)
    assert set(contents(tmp_path / "a")) == set(FILES)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    different = {name for name, data in contents(tmp_path / "c").items() if data != contents(tmp_path / "a")[name]}
    assert different == {"model.safetensors", "README.md"}


@pytest.mark.parametrize(("kind", "parameters", "architecture"), [("llama", 361_088, "Llama"), ("gpt-oss", 628_108, "GptOss")])
def test_the_weights_have_the_size_and_type_that_the_configuration_says(
    kind: Kind, parameters: int, architecture: str, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path, kind)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == [f"{architecture}ForCausalLM"]
    assert config["dtype"] == "bfloat16"
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
        types = {weights.get_slice(name).get_dtype() for name in shapes}
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == parameters
    assert types == {"BF16"}
    assert shapes["model.embed_tokens.weight"] == [config["vocab_size"], config["hidden_size"]]
    assert ("lm_head.weight" in shapes) is not config["tie_word_embeddings"]


def test_rounding_to_bfloat16_is_to_the_nearest_and_ties_go_to_even() -> None:
    from harness.engines.tinymodel import _bf16

    exact = np.array([1.0, -0.5, 0.0], np.float32)
    assert _bf16(exact).tolist() == [0x3F80, 0xBF00, 0]
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32).view(np.float32)
    assert _bf16(ties).tolist() == [0x3F80, 0x3F82, 0x3F81]


def test_the_tokenizer_has_a_token_a_byte_and_gives_text_back(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Zürich: 10 °C\n  \t日本"
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text.encode())
    assert min(ids) >= 4
    assert max(ids) < 260
    assert tokenizer.decode(ids) == text
    assert [tokenizer.token_to_id(name) for name in ("<pad>", "<s>", "</s>", "<unk>")] == [0, 1, 2, 3]


def test_a_text_dataset_can_be_encoded_with_it(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    texts = Texts(tmp_path)
    texts.require("text", tmp_path, "row 1")
    (ids,) = texts.encode(["abc"])
    assert ids.dtype == np.int32
    assert len(ids) == 3


def test_every_place_that_a_person_sees_says_random_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny-model", str(tmp_path / "m"), "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert "RANDOM WEIGHTS" in said
    assert "0.7 MB" in said
    assert f"model.path={tmp_path / 'm'}" in said
    assert (tmp_path / "m" / "README.md").read_text().startswith("# RANDOM WEIGHTS, not a language model\n")
    assert "random weights" in load_spec("demo-vllm-cpu", [f"model.path={tmp_path / 'm'}"]).model.name
    assert stat.S_IMODE((tmp_path / "m" / "model.safetensors").stat().st_mode) & stat.S_IRUSR


def test_a_folder_with_something_in_it_is_only_written_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    assert main(["tiny-model", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["tiny-model", str(tmp_path), "--force", "--kind", "gpt-oss", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["random_weights"] is True
    assert told["kind"] == "gpt-oss"
    assert told["bytes"] == sum(len(data) for name, data in contents(tmp_path).items() if name in FILES)
    assert (tmp_path / "mine.txt").read_text() == "keep"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--seed", "-1"], "--seed -1 must not be negative"),
        (["--kind", "lama"], "llama"),
    ],
)
def test_wrong_arguments_are_refused_in_words(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tiny-model", str(tmp_path / "m"), *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_a_file_in_the_way_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m").write_text("")
    assert main(["tiny-model", str(tmp_path / "m")]) == 2
    assert "is a file" in capsys.readouterr().err


def test_the_demos_model_is_kept_and_made_again_when_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = kept_model()
    assert kept.parent == tmp_path / "paceline" / "models"
    before = contents(kept)
    (kept / "config.json").unlink()
    assert kept_model() == kept
    assert contents(kept) == before
    assert list(kept.parent.iterdir()) == [kept], "nothing half-made stays"


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("link", "is a link to nowhere, which is not there"),
        ("link/deeper", "link is a link to nowhere"),
        ("x" * 300, "cannot be used: File name too long"),
        ("busy", "model.safetensors is a folder, where a file is to be written"),
        ("file/deeper", "cannot be"),
    ],
)
def test_a_place_where_no_folder_can_be_is_refused_and_nothing_is_written(
    place: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "busy" / "model.safetensors").mkdir(parents=True)
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(["tiny-model", str(tmp_path / place), "--force"]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert len(err) < 600
    assert sorted(tmp_path.rglob("*")) == before


def python_that_answers(path: Path, status: int, words: str = "has vllm") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {words}\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def without_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of one's own, and a Python like the console's, which has no vLLM."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PACELINE_VLLM_PYTHON", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return tmp_path / "paceline"


def test_the_demo_takes_the_environment_of_the_tests_when_it_is_complete(without_vllm: Path) -> None:
    half, whole = without_vllm / "vllm-1", without_vllm / "vllm-2"
    python_that_answers(half / "bin" / "python", 0)
    python = python_that_answers(whole / "bin" / "python", 0)
    with pytest.raises(BadInput, match="make demo-vllm"):
        real_demo.python_with_vllm()
    (whole / "paceline-environment").write_text("2\n")
    assert real_demo.python_with_vllm() == python


@pytest.mark.parametrize(
    ("status", "words", "told"),
    [(0, "no vllm", "has no vLLM"), (1, "", "is no Python"), (0, "", "is no Python"), (None, "", "is not a file")],
)
def test_an_interpreter_named_for_the_demo_that_cannot_be_used_is_refused(
    status: int | None, words: str, told: str, without_vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = without_vllm / "mine"
    if status is not None:
        python_that_answers(named, status, words)
    monkeypatch.setenv("PACELINE_VLLM_PYTHON", str(named))
    with pytest.raises(BadInput, match=told):
        real_demo.python_with_vllm()


def test_what_is_given_to_the_demo_is_not_looked_for(without_vllm: Path) -> None:
    assert real_demo.vllm_overrides(["fleet.python=/some/python", "model.path=/some/model"]) == []
    (only,) = real_demo.vllm_overrides(["fleet.python=/some/python"])
    assert only.startswith('model.path="')
