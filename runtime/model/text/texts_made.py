"""Texts with which every model of texts is tested, whatever its example."""

MADE_TEXTS = (
    "",
    " ",
    "a",
    "été à Zürich, naïve Ærøskøbing",
    "e\u0301te\u0301",  # decomposed: the accents are characters of their own
    "İstanbul STRASSE straße",
    "日本語のテキスト",
    "مرحبا بالعالم",
    "👍🏽 👩\u200d👩\u200d👧 ☃",
    "tabs\tand\nnew lines\r\n",
    "don't stop-now: 3,141.59 e-mail@example.com",
    "zero\u200bwidth soft\u00adhyphen no\u00a0break",
    " ".join(["word"] * 100),
)
