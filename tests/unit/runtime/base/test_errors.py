from shiplift.runtime.base.errors import ShipliftError, by_exit_code, every_error


def test_every_error_class_has_an_exit_code_of_its_own() -> None:
    codes = [kind.exit_code for kind in every_error()]
    assert len(set(codes)) == len(codes)
    assert all(0 < code < 256 for code in codes)
    assert all(by_exit_code(kind.exit_code) is kind for kind in every_error())


def test_the_promised_codes() -> None:
    promised = {"Refused": 20, "Inconclusive": 21, "NotAdmitted": 30, "UsageError": 64, "Temporary": 75}
    codes = {kind.__name__: kind.exit_code for kind in every_error()}
    assert promised.items() <= codes.items()


def test_an_error_says_what_and_what_to_do() -> None:
    error = ShipliftError("the value is 3, the limit is 2.", do="Lower it.")
    assert str(error) == "the value is 3, the limit is 2. Lower it."
