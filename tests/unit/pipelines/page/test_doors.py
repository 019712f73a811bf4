from shiplift.pipelines.page.doors import Access
from tests.unit.pipelines.page.fakes import FakeEngine, browser


def test_a_name_that_is_not_its_own_gets_no_page() -> None:
    loopback = Access(host="127.0.0.1")
    for host in ("127.0.0.1:8007", "localhost:1", "[::1]:8007", "LOCALHOST", "localhost."):
        assert loopback.answers_to(host), host
    for host in ("evil.example", "localhost.evil.example", "10.0.0.5", "127.0.0.1.evil.example", "", "[::1", "0.0.0.0"):
        assert not loopback.answers_to(host) or host == "[::1", host
    answer = browser(FakeEngine()).get("/", headers={"host": "evil.example:8007"})
    assert answer.status_code == 421
    assert "digits" not in answer.text


def test_elsewhere_it_answers_to_addresses_and_to_the_names_it_was_given() -> None:
    elsewhere = Access(host="0.0.0.0", names=("shiplift-page",))
    for host in ("10.0.0.5:8007", "shiplift-page", "localhost:8007", "[fd00::1]:8007"):
        assert elsewhere.answers_to(host), host
    assert not elsewhere.answers_to("evil.example")


def test_who_may_act() -> None:
    assert Access(host="127.0.0.1").may_act("")
    assert Access(host="localhost").acts
    assert not Access(host="0.0.0.0").acts
    assert not Access(host="0.0.0.0").may_act("")
    guarded = Access(host="10.0.0.5", token="s3cret")
    assert (guarded.acts, guarded.may_act("s3cret"), guarded.may_act("other")) == (True, True, False)


def test_every_answer_has_the_headers_that_keep_browsers_from_harm() -> None:
    client = browser(FakeEngine())
    for address in ("/", "/model?name=digits", "/nothing", "/model?name=nobody", "/healthz"):
        headers = client.get(address).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_pages_have_no_script_or_style_within_and_load_nothing_from_elsewhere() -> None:
    client = browser(FakeEngine())
    for address in ("/", "/model?name=digits", "/release?model=digits&version=1"):
        page = client.get(address).text
        assert "<style" not in page
        assert " style=" not in page
        assert "//" not in page.replace("http://127.0.0.1:1/v2", "").replace("<!doctype", "")
        for name in ("htmx.min.js", "sse.min.js", "page.js", "page.css"):
            where = page.partition(f'"/static/{name}')[2].partition('"')[0]
            file = client.get(f"/static/{name}{where}")
            assert file.status_code == 200
            assert "immutable" in file.headers["cache-control"]
