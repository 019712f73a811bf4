"""What a version's description in the registry says about its release, below the author's own words.

Only the block between two marks is ever written. The author's words before and after it stay as they are.
"""

import re
import shlex
from collections.abc import Iterator

from shiplift.runtime.base.markdown import code
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.verdict import Check, Outcome

BEGIN = "<!-- shiplift: the next release replaces what is between these marks -->"
END = "<!-- shiplift: end -->"
LIMIT = 5000  # characters that MLflow's database keeps of a description
_CHECKS = 24
_ADVICE = 3
_BLOCK = re.compile(re.escape(BEGIN) + r"(?:(?!" + re.escape(BEGIN) + r").)*?" + re.escape(END), re.DOTALL)


def described(words: str, block: str) -> str | None:
    """The description `words` with `block` in place of the last one, or below all words; None if there is no room.

    Applying it twice changes nothing.
    """
    found = list(_BLOCK.finditer(words))
    if found:
        text = words[: found[-1].start()] + block + words[found[-1].end() :]
    else:
        text = f"{words}\n\n{block}" if words else block
    return text if len(text) <= LIMIT else None


def block_of(report: ReleaseReport, *, link: str, page: str, unkept: str = "", checks: int = _CHECKS) -> str:
    """The block, as Markdown: the verdict, at most that many `checks`, and where the report and the live page are.

    `link` is the report's address in the registry (empty: it has none, and `unkept` says why), `page` the live page's
    (empty: no page is known). What comes from authors is in code spans, which no renderer interprets.
    """
    return "\n".join([BEGIN, *_lines(report, link, page, unkept, checks), END])


def shortened(words: str, report: ReleaseReport, *, link: str, page: str, unkept: str = "") -> str | None:
    """The description with as many checks as there is room for; None if there is room for none of it."""
    for checks in (_CHECKS, 8, 3, 0):
        block = block_of(report, link=link, page=page, unkept=unkept, checks=checks)
        if text := described(words, block):
            return text
    return None


def _lines(report: ReleaseReport, link: str, page: str, unkept: str, checks: int) -> Iterator[str]:
    name = shlex.quote(f"{report.model}/{report.version}")
    yield f"**Shiplift: {report.outcome}** in release {code(report.release)}"
    yield ""
    if report.reason and not report.alias:
        yield f"- why: {code(report.reason)}"
    yield from (f"- what to do about {code(do)}" for do in report.what_to_do[: min(_ADVICE, checks)])
    shown = sorted(report.checks, key=lambda check: check.verdict is Outcome.PASS)[:checks]
    yield from (f"- {_check(check)}" for check in shown)
    if len(shown) < len(report.checks):
        yield f"- {len(report.checks) - len(shown)} more checks are in the report"
    kept = f"[in the run's artifacts]({link}), " if link else ""
    yield f"- report: {kept}{code(f'shiplift report {name} --open')}"
    if unkept:
        yield f"- the report is not among the run's artifacts: {code(unkept)}"
    shown_at = f"[live page]({page}), " if page else ""
    yield f"- {shown_at}{code(f'shiplift open {name}')}"


def _check(check: Check) -> str:
    limit = f", limit {_number(check.limit)}" if check.limit is not None else ""
    measured = f": {_number(check.measured)} {check.unit}".rstrip() if check.measured is not None else ""
    warning = " (warning)" if check.severity == "warn" else ""
    return f"{check.verdict}{warning}: {code(f'{check.name}{measured}{limit}', limit=120)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
