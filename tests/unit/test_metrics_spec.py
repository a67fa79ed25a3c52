"""The spec's table [metrics]: what cannot be right is refused before anything starts, with field, value and what would be."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.specfile import SpecError, load_spec

RULE = """groups:
- name: mine
  rules:
  - alert: Hot
    expr: EXPR
    labels: { id: hot, severity: warn }
"""


def refused(*overrides: str) -> str:
    with pytest.raises(SpecError) as error:
        load_spec("demo", overrides)
    return str(error.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:99999", "port out of range 0-65535"),
        ("http://127.0.0.1:abc", "its port is no number: 'abc'"),
        ("http://[::1", "invalid IPv6 URL"),
        ("prometheus:9090", "begins with http:// or https://"),
        ("http://{host}:9090", "one Prometheus is asked"),
        ("http://h:9090/api/v1/", "write http://h:9090"),
        ("http://h/prom/api/v1/query?query=up", "write http://h/prom"),
        ("http://h:9090/graph?g0.expr=up#x", "write http://h:9090"),
    ],
)
def test_a_url_that_cannot_be_asked_is_refused_with_what_would_be_right(url: str, said: str) -> None:
    told = refused(f"metrics.gpu.url={url}")
    assert "metrics.gpu.url" in told
    assert said in told


@pytest.mark.parametrize(
    "url", ["https://api/api/v1/namespaces/mon/services/prom:9090/proxy", "http://[::1]:9090", "https://mimir/prometheus"]
)
def test_path_prefixes_are_taken_as_they_are(url: str) -> None:
    assert load_spec("demo", [f"metrics.gpu.url={url}/"]).metrics.gpu.url == url


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ('targets=["http://{node}:5000/metrics"]', "only {host} stands for something"),
        ('targets=["http://h:70000/metrics"]', "port out of range"),
        ("matchers=cluster=a", "write them as in cluster="),
        ("matchers=} or vector(1) or x{", "write them as in cluster="),
        ("prefix=a-b", "only letters, digits and _"),
        ('headers={authorization="Bearer abc"}', "bearer_file or password_file name a file"),
        ("username=me", "metrics.gpu.username: needs password_file"),
        ("password_file=me", "metrics.gpu.password_file: needs username"),
        ('hosts={gpu-17="node042"}', "is no node of this fleet, which has node000 to node007"),
        ('profiles=["amd"]', "there are amd-dme"),
        ('profile_files=["nowhere.toml"]', "nowhere.toml cannot be read"),
    ],
)
def test_other_settings_that_cannot_serve_are_refused(override: str, said: str) -> None:
    told = refused(f"metrics.gpu.{override}")
    assert said in told
    assert "abc" not in told, "no secret is repeated"


@pytest.mark.parametrize("matchers", ["", 'cluster="a"', "a=~'b|c', d!~\"e{1,2}\",", 'a="with \\" quote"'])
def test_matchers_of_promql_are_taken(matchers: str) -> None:
    quoted = matchers.replace("\\", "\\\\").replace('"', '\\"')
    assert load_spec("demo", [f'metrics.gpu.matchers="{quoted}"']).metrics.gpu.matchers == matchers


@pytest.mark.parametrize(("listen", "said"), [("8080", "is not host:port"), ("127.0.0.1:70000", "at most 65535")])
def test_where_our_page_is_shown_is_host_and_port(listen: str, said: str) -> None:
    assert said in refused(f"metrics.listen={listen}")
    assert load_spec("demo", ["metrics.listen=:9464"]).metrics.listen == ":9464"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("hello: world\n", "groups: is missing"),
        ("groups: [\n", "is not YAML"),
        (RULE.replace("EXPR", "sum by ("), "rule 1 (Hot): expr: is not PromQL"),
    ],
)
def test_a_rule_file_that_cannot_be_used_is_refused_before_the_start(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "rules.yaml"
    if text is not None:
        path.write_text(text)
    told = refused(f"metrics.rules={path}")
    assert "metrics.rules" in told
    assert said in told


def test_files_of_a_spec_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules.yaml").write_text(RULE.replace("EXPR", "up == 0"))
    (tmp_path / "spec.toml").write_text('[metrics]\nrules = "rules.yaml"\n[metrics.gpu]\nbearer_file = "token"\n')
    monkeypatch.chdir(tmp_path.parent)
    metrics = load_spec(str(tmp_path / "spec.toml")).metrics
    assert (metrics.rules, metrics.gpu.bearer_file) == (str(tmp_path / "rules.yaml"), str(tmp_path / "token"))
    told = refused('metrics.gpu.profile_files=["mine.toml"]')
    assert f"{tmp_path.parent}/mine.toml" in told, "what is typed is of where it is typed"


def test_a_rule_file_of_this_machine_is_not_in_the_heads_pod(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULE.replace("EXPR", "up == 0"))
    on_cluster = ("cluster.kind=kubernetes",)
    assert "metrics_secret" in refused(*on_cluster, f"metrics.rules={rules}")
    inside = "/etc/paceline-metrics/rules.yaml"
    assert load_spec("demo", [*on_cluster, f"metrics.rules={inside}"]).metrics.rules == inside
