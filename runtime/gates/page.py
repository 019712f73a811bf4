"""The page of a release, which exists however the release ended."""

import traceback

from markupsafe import escape

from shiplift.runtime.gates.report import Story, render
from shiplift.runtime.records.release import ReleaseReport


def page_of(report: ReleaseReport, story: Story) -> str:
    """The report's page. If rendering fails, a plain page: the release has ended all the same."""
    try:
        return render(report, story)
    except Exception as error:  # our own bug must not turn a promoted release into a failed one
        traceback.print_exception(error)
        why = f"This page could not be made ({type(error).__name__}: {error}). The release as JSON:"
        text = escape(f"{why}\n\n{report.model_dump_json(indent=1)}")
        return f"<!doctype html><meta charset=utf-8><title>{escape(report.release)}</title><pre>{text}</pre>\n"
