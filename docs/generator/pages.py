"""What a page may take from elsewhere.

`<!-- from code: PART -->` becomes a part that is written out of the code, and `<!-- from file: NAME -->` a file of the
repository's root. Links to such a file lead to its page.
"""

import re
from collections.abc import Callable, Mapping

from docs.generator import checks, commands, documents, events, exits, http, kubernetes, metrics, records
from docs.generator.sources import ROOT

PARTS: Mapping[str, Callable[[], str]] = {
    "commands": commands.commands,
    "exit codes": exits.exit_codes,
    "release spec": documents.release_spec,
    "pipeline spec": documents.pipeline_spec,
    "profiles": documents.profiles,
    "site policy": documents.site_policy,
    "values": documents.values,
    "environment": documents.environment,
    "checks": checks.checks,
    "rule metrics": documents.rule_metrics,
    "records": records.stage_records,
    "metrics": metrics.metrics,
    "conditions": events.conditions,
    "reasons": events.reasons,
    "events": events.other_events,
    "definitions": kubernetes.definitions,
    "http": http.endpoints,
}
_FILES = {"SECURITY.md": "security", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}
_FILE = re.compile(r"^<!-- from file: (\w+\.md) -->$", re.MULTILINE)
_LINK = re.compile(rf"\]\((?:\.\./)*({'|'.join(_FILES)})([#)])")
_MARK = re.compile(r"^<!-- from code: ([a-z ]+) -->$", re.MULTILINE)


def parts_of(page: str) -> list[str]:
    """The parts that a page takes."""
    return _MARK.findall(page)


def expanded(page: str) -> str:
    """The page with each part and file in its place.

    Raises:
        KeyError: there is no such part.
    """
    whole = _FILE.sub(lambda mark: (ROOT / mark[1]).read_text().replace("](docs/", "](/"), page)
    whole = _MARK.sub(lambda mark: PARTS[mark[1]](), whole)
    return _LINK.sub(lambda link: f"](/project/{_FILES[link[1]]}.md{link[2]}", whole)
