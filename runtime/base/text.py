"""Makes untrusted text safe to show: it may contain characters that a terminal, a log or a page would obey.

Escape sequences move the cursor and recolour; a right-to-left override reverses what follows; a line break forges a
line of a log; storage refuses a NUL or a lone surrogate.
"""

import unicodedata

_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # controls, formats, surrogates, unassigned, separators


def printable(text: str, *, limit: int = 0, lines: bool = False) -> str:
    r"""The text with every invisible or active character written as `\x1b`, `\u202e` or `\U000e0001`.

    Applying it twice changes nothing. With `lines`, line breaks and tabs stay. With a `limit`, a longer text is cut to
    that many characters, the last of which is `…`.
    """
    if text.isascii() and text.isprintable():
        safe = text
    else:
        safe = "".join(c if lines and c in "\n\t" else _escaped(c) for c in text)
    return safe if not limit or len(safe) <= limit else f"{safe[: limit - 1]}…"


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
