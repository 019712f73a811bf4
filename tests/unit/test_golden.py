import pytest

from tests.unit.examples import Golden


@pytest.mark.parametrize("name", ["shiplift.schema.json", "nowhere.txt"])
def test_another_text_than_the_golden_one_fails_with_the_difference_and_what_to_do(
    golden: Golden, name: str, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--update-golden"):
        pytest.skip("it would be written")
    with pytest.raises(pytest.fail.Exception) as error:
        golden(name, "another text\n")
    message = str(error.value)
    assert f"--- golden/{name}" in message
    assert "+another text" in message
    assert message.endswith("If the change is meant, run `make golden`.")
