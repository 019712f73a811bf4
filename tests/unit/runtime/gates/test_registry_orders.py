"""What a tag or an alias in the registry decides, and that nothing in it decides unless the site's owner trusts it."""

import pytest
from pydantic import ValidationError

from shiplift.runtime.gates.registry_orders import noted
from shiplift.runtime.records.site import RegistryApprovals, SitePolicy
from shiplift.runtime.store.registry.terms import VersionInfo

TRUSTED = RegistryApprovals(tags="trusted")
NAMED = SitePolicy(approvers=("ana", "bob"), approvals=TRUSTED)
ANYBODY = SitePolicy(approvals=RegistryApprovals(tags="trusted", alias="ok"))


def version(*aliases: str, **tags: str) -> VersionInfo:
    named = {f"shiplift.{key}": text for key, text in tags.items()}
    return VersionInfo(
        name="digits", version=4, source="", run_id="", created_at=1.0, tags=named, aliases=tuple(aliases)
    )


@pytest.mark.parametrize(
    ("policy", "info", "told"),
    [
        (NAMED, version(approve="ana: labels checked"), "approved by ana, says a tag in the registry: labels checked"),
        (NAMED, version(approve=" bob "), "approved by bob, says a tag in the registry"),
        (NAMED, version(approve="ana", reject="bob: at: 3"), "rejected by bob, says a tag in the registry: at: 3"),
        (NAMED, version(approve="ana", reject="eve: no"), "approved by ana, says a tag in the registry"),
        (ANYBODY, version(approve="see: issue 3"), "approved by a tag in the registry: see: issue 3"),
        (ANYBODY, version("ok", reject=""), "rejected by a tag in the registry"),
        (ANYBODY, version("champion", "ok"), "approved by an alias in the registry: ok"),
        (ANYBODY, version(approve="a\x1b[31m"), r"approved by a tag in the registry: a\x1b[31m"),
    ],
)
def test_a_decision_says_what_is_known_of_who_made_it(policy: SitePolicy, info: VersionInfo, told: str) -> None:
    found = noted(info, policy, 7.0).decision
    assert found is not None
    assert (found.sentence, found.at) == (told, 7.0)


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (version(approve="eve: fine"), "approve does not count: eve may not decide, only ana, bob"),
        (version(approve="labels checked by ana"), "labels checked by ana may not decide"),
        (version(approve=""), "it names nobody"),
        (version(approve="Ana"), "Ana may not decide"),
        (version(approve="x" * 5000), f"{'x' * 79}… may not decide"),
    ],
)
def test_a_tag_that_names_none_of_the_approvers_decides_nothing_and_says_so(info: VersionInfo, why: str) -> None:
    found = noted(info, NAMED, 7.0)
    assert found.decision is None
    assert why in found.ignored


@pytest.mark.parametrize(
    "policy", [SitePolicy(), SitePolicy(approvers=("ana",)), SitePolicy(approvals=RegistryApprovals(alias="yes"))]
)
def test_nothing_in_the_registry_decides_where_the_owner_did_not_say_so(policy: SitePolicy) -> None:
    assert noted(version("ok", approve="ana", reject="ana"), policy, 7.0).decision is None


def test_an_alias_that_can_name_nobody_or_means_something_else_is_refused() -> None:
    with pytest.raises(ValidationError, match="does not say who set it"):
        SitePolicy(approvers=("ana",), approvals=RegistryApprovals(alias="ok"))
    for alias in ("champion", "previous", "a b", "7"):
        with pytest.raises(ValidationError):
            RegistryApprovals(alias=alias)


def test_a_policy_without_it_is_written_as_before() -> None:
    assert "approvals" not in SitePolicy().model_dump()
    assert SitePolicy.model_validate_json(NAMED.model_dump_json()) == NAMED
