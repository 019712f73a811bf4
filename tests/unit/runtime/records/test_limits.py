"""What a served model may use: the site's values cap the spec's, and its silence."""

from shiplift.runtime.records.limits import Limits


def test_the_lower_of_two_limits_holds_and_one_holds_alone() -> None:
    asked, highest = Limits(memory_mb=900, cpu_s=1.5), Limits(memory_mb=512, threads=64)
    assert asked.within(highest) == highest.within(asked) == Limits(memory_mb=512, cpu_s=1.5, threads=64)
    assert asked.within(Limits()) == asked


def test_people_read_those_that_are_set() -> None:
    assert str(Limits(memory_mb=900, cpu_s=1.5)) == "900 MiB of memory, 1.5 s of CPU time per execution"
    assert str(Limits()) == ""
