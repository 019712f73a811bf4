from shiplift.runtime.host.processor import cpu_flags, has_vnni


def test_this_processor_is_asked_once() -> None:
    assert cpu_flags() is cpu_flags()
    assert isinstance(has_vnni(), bool)
