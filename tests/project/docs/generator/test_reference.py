"""Everything that a user can meet appears in the reference."""

import re

from docs.generator import commands, documents, events, exits, http, kubernetes, metrics, pages, records
from shiplift.pipelines.commands.app import COMMANDS
from shiplift.pipelines.installation.values import Values
from shiplift.runtime.base.errors import every_error
from shiplift.runtime.planning.profiles import Profiles
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.site import SitePolicy
from shiplift.runtime.serving.operator.resources import ConditionType, Reason
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.pipeline import PipelineSpec
from tests.project.docs.pages import ROOT, every_page, written

DOCUMENTS: tuple[tuple[type[Record], str], ...] = (
    (ReleaseSpec, "docs/reference/spec.md"),
    (PipelineSpec, "docs/reference/pipeline.md"),
    (Profiles, "docs/reference/profiles.md"),
    (SitePolicy, "docs/reference/site.md"),
    (Values, "docs/reference/values.md"),
)
INSIDE = {"SHIPLIFT_SERVER_SITE"}  # an image sets it


def test_every_part_is_on_a_page() -> None:
    taken = {part for page in every_page() for part in pages.parts_of(written(page))}
    assert taken == set(pages.PARTS)


def test_every_command_and_option_appears() -> None:
    page = every_page()["docs/reference/commands.md"]
    assert set(commands.every_command()) == set(COMMANDS)
    for name, command in commands.every_command().items():
        section = page.partition(f"## shiplift {name}\n")[2].partition("\n## ")[0]
        assert command.help.splitlines()[0] in section
        for parameter in command.params:
            assert parameter.param_type_name == "argument" or all(f"`{option}`" in section for option in parameter.opts)


def test_every_field_of_a_document_appears() -> None:
    for record, page in DOCUMENTS:
        for path, section in documents.sections(record):
            below = every_page()[page].partition(f"## {path or 'The whole document'}\n")[2].partition("\n## ")[0]
            assert all(f"| `{name}` |" in below for name in section["properties"]), path


def test_fields_that_their_template_explains_have_a_meaning() -> None:
    text = every_page()["docs/reference/spec.md"]
    assert re.search(r"\| `calibration` \|.*without it, int8 is calibrated on validation inputs", text)
    assert re.search(r"\| `min_score` \|.*the lowest metric allowed", text)


def test_every_variable_that_a_command_or_a_daemon_reads_appears() -> None:
    page = every_page()["docs/reference/environment.md"]
    files = [*(ROOT / "pipelines").rglob("*.py"), ROOT / "runtime/serving/openai/app.py"]
    read = {name for file in files for name in re.findall(r"\bSHIPLIFT_[A-Z_]*[A-Z]\b", file.read_text())}
    assert "SHIPLIFT_PAGE_TOKEN" in read
    assert {name for name in read if f"`{name}`" not in page} <= INSIDE


def test_every_exit_code_has_a_row_and_a_section() -> None:
    table, sections = every_page()["docs/reference/exit-codes.md"], every_page()["docs/howto/refusals.md"]
    for error in every_error():
        assert f"| {error.exit_code} | `{error.__name__}` |" in table
        assert f"## Exit code {error.exit_code}\n" in sections
        assert error.exit_code == 70 or f"**{error.title[0].upper()}" in sections
    assert len(exits.errors()) == len({error.exit_code for error in every_error()})


def test_every_record_and_field_appears() -> None:
    text = every_page()["docs/reference/records.md"]
    for record in records.every_record():
        below = text.partition(f"\n## {record.__name__}\n")[2].partition("\n## ")[0]
        assert all(f"| `{name}` |" in below for name in records.schema_of(record)[0]["properties"]), record


def test_every_metric_that_is_drawn_or_alerted_on_is_known() -> None:
    used = set(re.findall(r"\bshiplift_[a-z_]+\b", (ROOT / "templates/grafana/shiplift.json").read_text()))
    used |= set(re.findall(r"\bshiplift_[a-z_]+\b", (ROOT / "runtime/serving/monitoring/alerts.py").read_text()))
    known = metrics.names()
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in used} <= known
    assert {"shiplift_stopped_executions_total", "shiplift_worker_crashes_total"} <= known
    assert all(f"`{name}`" in every_page()["docs/reference/metrics.md"] for name in known)


def test_every_metric_says_what_it_means() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w*) \| (.*?) \| (.*?) \| (.*?) \|$", metrics.metrics(), re.MULTILINE)
    assert {name for name, *_ in rows} == metrics.names()
    assert all(kind and meaning and publisher for _, kind, _, meaning, publisher in rows)


def test_every_condition_reason_and_event_appears() -> None:
    text = every_page()["docs/reference/events.md"]
    named = [*(str(each) for each in ConditionType), *(str(each) for each in Reason), *events.event_names()]
    assert all(f"| `{name}` |" in text for name in named)


def test_every_field_of_a_custom_resource_appears_with_a_meaning() -> None:
    text = every_page()["docs/reference/kubernetes.md"]
    for found in kubernetes.every_definition():
        below = text.partition(f"## {found['spec']['names']['kind']}\n")[2].partition("\n## ")[0]
        rows = dict(re.findall(r"^\| `(\S+)` \| .*? \| (.*) \|$", below, re.MULTILINE))
        assert all(path in rows for path, _ in kubernetes.paths(found))


def test_every_path_has_a_meaning() -> None:
    assert all(all(row) for row in http.every_endpoint())
    assert {"`/webhooks/mlflow`", "`/v1/chat/completions`", "`/readyz`"} <= {row[2] for row in http.every_endpoint()}
