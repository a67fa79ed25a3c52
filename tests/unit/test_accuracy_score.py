"""The accuracy log read as a stream, and scored: counts by subset, weights, gates, commands of others, and every way to fail."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from answers_kit import hexed, ids_of, line, tokenizer_file, work_over, write_answers, write_lines
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.mlperf.accuracy.errors import ScoringError
from harness.mlperf.accuracy.log import AccuracyLog
from harness.mlperf.accuracy.outside import Scorer
from harness.mlperf.accuracy.score import ANSWERS, Work, score
from harness.mlperf.accuracy.texts import Texts
from harness.mlperf.accuracy.truths import Truths, read_truths
from harness.mlperf.rules import MODELS

ASKED = [
    ("gpqa_diamond", "B", "Answer: B"),
    ("gpqa_diamond", "C", "Answer: B"),
    ("aime25", "42", "\\boxed{42}"),
    ("aime25", "7", "who knows"),
    ("math500", "\\frac{1}{2}", "\\boxed{0.5}"),
    ("mmlu_pro", "J", "Answer: J"),
]


# --- the log -------------------------------------------------------------------------------------------------


def test_a_log_gives_its_answers_and_the_hash_of_its_bytes(tmp_path: Path) -> None:
    path = write_answers(tmp_path, ["one", "two", "three"])
    log = AccuracyLog(tmp_path)
    found = list(log)
    assert [(one.seq, one.index, one.ids.tolist(), one.n) for one in found] == [
        (0, 2, ids_of("three"), 5),
        (1, 1, ids_of("two"), 3),
        (2, 0, ids_of("one"), 3),
    ]
    assert found[0].first == found[0].tokens[:4]
    assert (log.n, log.sha256) == (3, hashlib.sha256(path.read_bytes()).hexdigest())


def test_an_offline_log_has_no_first_tokens(tmp_path: Path) -> None:
    write_lines(tmp_path, [line(0, 0, [5, 6], token_data=None)])
    assert [one.first for one in AccuracyLog(tmp_path)] == [None]


@pytest.mark.parametrize(
    ("lines", "end", "said"),
    [
        ([], "", "is cut off"),
        ([line(0, 0, [5])], "\n", "1 answers are whole"),
        ([line(0, 0, [5]), line(1, 1, [5])[:30]], "", "line 3 is half an answer"),
        ([line(0, 0, [5]), line(0, 1, [5])], "\n]", "seq_id 0 is there a second time"),
        ([line(0, 0, [5], data="0500")], "\n]", "data is not the hexadecimal of int32 token ids"),
        ([line(0, 0, [5], data="zz000000")], "\n]", "data is not the hexadecimal"),
        ([line(0, 0, [5], token_data="05")], "\n]", "token_data is not the hexadecimal"),
        ([line(0, -1, [5])], "\n]", "qsl_idx -1 is no place"),
        (['{"seq_id": 1}'], "\n]", "is not one answer as LoadGen writes it"),
        (["[1, 2]"], "\n]", "line 2"),
    ],
)
def test_a_damaged_log_says_what_is_wrong_with_it(tmp_path: Path, lines: list[str], end: str, said: str) -> None:
    write_lines(tmp_path, lines, end)
    with pytest.raises(ScoringError, match=said) as caught:
        list(AccuracyLog(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_a_missing_log_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match="LoadGen wrote no accuracy log"):
        list(AccuracyLog(tmp_path))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(st.sampled_from([b"[", b"]", b"\n", b",", line(0, 0, [5]).encode(), b"{", b"}", b"null"]), max_size=12).map(
            b"".join
        ),
    )
)
def test_any_bytes_are_answers_or_a_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mlperf_log_accuracy.json").write_bytes(content)
    try:
        found = list(AccuracyLog(tmp_path))
    except ScoringError:
        return
    assert all(one.n * 4 == len(one.tokens) for one in found)


# --- the dataset ---------------------------------------------------------------------------------------------


def test_truths_of_every_kind_of_file(tmp_path: Path) -> None:
    rows = [{"dataset": "GPQA", "ground_truth": "B", "x": 1}, {"dataset": "aime25", "ground_truth": "42", "x": 2}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    pl.DataFrame(rows).write_parquet(tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        found = read_truths(tmp_path / name)
        assert (found.subsets, found.answers) == (["gpqa", "aime25"], ["B", "42"])
    assert len(read_truths(tmp_path / "a.jsonl", samples=1)) == 1
    pl.DataFrame({"dataset": ["aime"], "ground_truth": [7.0]}).write_parquet(tmp_path / "n.parquet")
    assert read_truths(tmp_path / "n.parquet").answers == ["7"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "x", "does not end in .parquet, .pkl"),
        ("a.jsonl", '{"input_tokens": [1]}\n', "has no field dataset"),
        ("a.jsonl", '{"dataset": "aime"}\n', "has no field ground_truth"),
        ("a.jsonl", '{"dataset": "aime", "ground_truth": 1}\n{"dataset": "aime"}\n', "row 1: ground_truth is empty"),
        ("a.jsonl", "{", "is not JSON"),
        ("a.parquet", "no", "is not a whole parquet file"),
        ("a.pkl", "no", "is not a whole pickle"),
    ],
)
def test_a_dataset_without_truths_is_told(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ScoringError, match=said):
        read_truths(tmp_path / name)
    with pytest.raises(ScoringError, match="does not exist"):
        read_truths(tmp_path / f"not-{name}", "jsonl")


def test_a_tokenizer_that_is_none_or_anothers_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match=r"tokenizer.json: does not exist; --tokenizer names"):
        Texts(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ScoringError, match="is not a tokenizer"):
        Texts(tmp_path)
    write_lines(tmp_path, [line(0, 0, [5, 100_000, 6])])
    work = dataclasses.replace(work_over(tmp_path / "x", [("gpqa", "A", "A")]), attempt=tmp_path)
    with pytest.raises(ScoringError, match=r"does not know token 100000, the 2. of sample 0's answer"):
        score(work, None)


# --- the score -----------------------------------------------------------------------------------------------


def test_each_subset_is_counted_by_its_own_rule(tmp_path: Path) -> None:
    found = score(work_over(tmp_path, ASKED), None)
    assert {one.name: (one.n, one.correct, one.unparsed) for one in found.subsets} == {
        "gpqa_diamond": (2, 1, 0), "aime25": (2, 1, 1), "math500": (1, 1, 0), "mmlu_pro": (1, 1, 0),
    }  # fmt: skip
    assert (found.metric, found.n, found.gate, found.passed, found.expected_n) == ("exact_match", 6, None, None, None)
    assert found.score == pytest.approx(100 * 4 / 6)
    assert found.tokens_per_sample == pytest.approx(sum(len(ids_of(text)) for _, _, text in ASKED) / 6)
    assert found.log_sha256 == hashlib.sha256((tmp_path / "mlperf_log_accuracy.json").read_bytes()).hexdigest()
    rows = [json.loads(row) for row in (tmp_path / ANSWERS).read_text().splitlines()]
    assert {row["qsl_idx"]: (row["answer"], row["correct"], row["text_end"]) for row in rows}[1] == ("B", False, "Answer: B")
    assert sorted(path.name for path in tmp_path.iterdir()) == [ANSWERS, "mlperf_log_accuracy.json"]


def test_gpt_oss_counts_questions_that_are_asked_often_that_much_less(tmp_path: Path) -> None:
    asked = (
        [("aime25", "1", "\\boxed{1}")] * 8 + [("gpqa_diamond", "A", "Answer: A")] * 2 + [("gpqa_diamond", "A", "Answer: B")] * 3
    )
    found = score(work_over(tmp_path, asked), "gpt-oss-120b")
    assert found.score == pytest.approx(100 * (8 / 8 + 2 / 5) / (8 / 8 + 5 / 5))
    assert (found.gate, found.passed, found.expected_n) == (82.2987, False, 4395)
    assert any("under the gate of 82.2987" in remark for remark in found.remarks)
    assert any("13 samples were answered, gpt-oss-120b has 4,395" in remark for remark in found.remarks)


@pytest.mark.parametrize(("right", "passed"), [(3534, False), (3535, True)])
def test_deepseek_r1_passes_at_its_gate_and_not_under_it(
    tmp_path: Path, right: int, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 3,497.6 tokens a sample would be an hour of work: the lengths have a test of their own
    rules = dataclasses.replace(MODELS["deepseek-r1"], tokens_per_sample=(1.0, 100.0))
    monkeypatch.setattr("harness.mlperf.accuracy.score.MODELS", {"deepseek-r1": rules})
    found = score(
        work_over(tmp_path, [("gpqa", "A", "Answer: A")] * right + [("gpqa", "A", "no")] * (4388 - right)), "deepseek-r1"
    )
    assert found.score == pytest.approx(100 * right / 4388)
    assert (found.passed, found.n) == (passed, 4388)


def test_answers_that_are_too_short_do_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = dataclasses.replace(MODELS["deepseek-r1"], accuracy_samples=2)
    monkeypatch.setattr("harness.mlperf.accuracy.score.MODELS", {"deepseek-r1": rules})
    found = score(work_over(tmp_path, [("gpqa", "A", "Answer: A")] * 2), "deepseek-r1")
    assert (found.score, found.passed) == (100, False)
    assert found.remarks == ["9.0 tokens per sample are not within 3497.6 to 4274.85"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line(0, 0, [5])], r"1 of 2 samples have no answer \(qsl_idx 1\)"),
        ([line(0, 0, [5]), line(1, 0, [5])], "sample 0 was answered twice"),
        ([line(0, 0, [5]), line(1, 2, [5])], "qsl_idx 2 is beyond truths.jsonl, which has 2 samples"),
        ([line(0, 0, [5], token_count=3), line(1, 1, [5])], "sample 0 has 1 tokens and says 3"),
    ],
)
def test_answers_that_do_not_fit_the_dataset_are_no_score(tmp_path: Path, lines: list[str], said: str) -> None:
    work = work_over(tmp_path, [("gpqa", "A", "A")] * 2)
    write_lines(tmp_path, lines)
    with pytest.raises(ScoringError, match=said):
        score(work, None)
    assert not (tmp_path / ANSWERS).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["mlperf_log_accuracy.json"]


def test_a_subset_that_nobody_can_score_is_told_before_the_log_is_read(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match=r"livecodebench_v6 \(1 samples\) is code.*--scorer livecodebench="):
        score(work_over(tmp_path, [("livecodebench_v6", "q1", "```python\npass\n```")]), None)
    with pytest.raises(ScoringError, match=r"poetry \(1 samples\) has no rule here.*--scorer poetry="):
        score(work_over(tmp_path, [("poetry", "rose", "rose")]), None)
    with pytest.raises(ScoringError, match="--scorer code: the dataset has no such subset; it has gpqa"):
        score(work_over(tmp_path, [("gpqa", "A", "A")], scorers=[Scorer("code", "true")]), None)


# --- commands of others --------------------------------------------------------------------------------------

WRITES = (
    "import json,sys; n=sum(json.loads(l)['answer'] is not None for l in open(sys.argv[1]));"
    "json.dump({'correct': n}, open(sys.argv[2],'w'))"
)
CODE = [("livecodebench_v6", "q1", "```python\npass\n```"), ("livecodebench_v6", "q2", "no idea"), ("gpqa", "A", "Answer: A")]


def command(program: str, *words: str) -> str:
    return f'{sys.executable} -c "{program}" {" ".join(words)}'


def test_a_command_scores_its_subset_and_the_rest_is_scored_here(tmp_path: Path) -> None:
    scorer = Scorer.parse(f"livecodebench={command(WRITES, '{answers}', '{out}')}")
    found = score(work_over(tmp_path, CODE, scorers=[scorer]), None)
    assert {one.name: (one.correct, one.score) for one in found.subsets} == {"gpqa": (1, 100), "livecodebench_v6": (1, 50)}
    assert found.subsets[1].how.startswith("command: ")
    given_ = [json.loads(row) for row in (tmp_path / "scoring" / "livecodebench.answers.jsonl").read_text().splitlines()]
    assert {row["ground_truth"]: (row["answer"], row["text"]) for row in given_} == {
        "q1": ("pass", "```python\npass\n```"), "q2": (None, "no idea"),
    }  # fmt: skip


def test_an_official_script_scores_the_whole_log_by_what_it_prints(tmp_path: Path) -> None:
    program = "import sys; print(open(sys.argv[1]).read(1)); print(chr(39)+'exact_match'+chr(39)+': 61.2')"
    scorer = Scorer.parse(f"all={command(program, '{log}')}")
    found = score(work_over(tmp_path, CODE, scorers=[scorer]), None)
    assert found.score == pytest.approx(61.2)
    assert "one command told one score for all" in found.remarks[0]
    assert (tmp_path / "scoring" / "all.log").read_text().splitlines() == ["[", "'exact_match': 61.2"]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print(1)", "told no score"),
        ("import sys; print('out of memory'); sys.exit(3)", "failed with status 3.*out of memory"),
        ("print('exact_match: 161')", "told .* correct of 2 samples, which cannot be"),
        ("import sys; open(sys.argv[1],'w').write('{')", "is not the JSON that a scorer writes"),
        ("import sys; open(sys.argv[1],'w').write('[]')", "holds no JSON object"),
        ("import time; time.sleep(60)", "did not end within 0.7 s"),
    ],
)
def test_a_command_that_fails_is_told_with_its_last_words(tmp_path: Path, program: str, said: str) -> None:
    scorer = Scorer.parse(f"livecodebench={command(program, '{out}')}")
    with pytest.raises(ScoringError, match=f"(?s){said}"):
        score(work_over(tmp_path, CODE, scorers=[scorer], deadline_s=0.7 if "sleep" in program else 60.0), None)


def test_a_command_that_cannot_be_started_or_read_is_told(tmp_path: Path) -> None:
    for words, said in (("/nowhere/at/all {answers}", "cannot be started"), ("'", "cannot be split")):
        with pytest.raises(ScoringError, match=said):
            score(work_over(tmp_path, CODE, scorers=[Scorer("livecodebench", words)]), None)
    for text in ("livecodebench", "=true", "x="):
        with pytest.raises(ScoringError, match="not of the form NAME=COMMAND"):
            Scorer.parse(text)


def test_children_of_a_command_end_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = (
        f"import subprocess; p=subprocess.Popen(['sleep','60']); open('{pid_file}','w').write(str(p.pid));"
        "print('exact_match: 50')"
    )
    score(work_over(tmp_path / "a", CODE, scorers=[Scorer("livecodebench", command(child))]), None)
    pid, deadline = int(pid_file.read_text()), time.monotonic() + 60
    while time.monotonic() < deadline and _runs(pid):
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_thousand_long_answers_are_scored_in_seconds(tmp_path: Path) -> None:
    ids = [4 + ord("x")] * 1270 + ids_of("Answer: A")
    told = f'"data": "{hexed(ids)}", "token_count": {len(ids)}}}'
    write_lines(tmp_path, (f'{{"seq_id": {n}, "qsl_idx": {n}, {told}' for n in range(1000)))
    work = Work(tmp_path, Truths(tmp_path, ["gpqa"] * 1000, ["A"] * 1000), Texts(tokenizer_file()))
    started_s = time.process_time()
    assert score(work, None).score == 100
    assert time.process_time() - started_s < 10  # 0.8 on two slow cores
