"""Untrusted text in Markdown: whatever it contains, it is shown as it is, and forms no link, heading, list or tag."""

import re

from shiplift.runtime.base.text import printable


def code(text: str, *, limit: int = 300) -> str:
    """The text as a code span, cut to `limit` characters: every renderer shows what is in one as it is.

    The fence is longer than any run of backticks in the text, so that the text can't end it.
    """
    line = printable(" ".join(text.split()), limit=limit)
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    edge = " " if not line or line[0] in "` " or line[-1] in "` " else ""
    return f"{fence}{edge}{line}{edge}{fence}"
