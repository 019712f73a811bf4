"""Calibrates this machine once: the sandbox measures, and what other processes used meanwhile is told."""

import time
from pathlib import Path

from shiplift.runtime.confinement.policy import EVALUATE, Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.host.cpu_time import others_s
from shiplift.runtime.host.processor import cpu_name, cpu_share, usable_cores
from shiplift.runtime.records.calibration import Calibrating, Calibration, Rate, Unavailable
from shiplift.runtime.records.site import Site
from shiplift.runtime.search.calibration.cases import cases_for
from shiplift.runtime.search.calibration.keeping import keep, known, this_hardware, versions
from shiplift.runtime.search.disturbance import harmful
from shiplift.runtime.targets.discovery import detect
from shiplift.runtime.targets.machine import features_of, this_machine

_PROBE = Entry("shiplift.runtime.search.calibration.probing:probe", EVALUATE)
_LIMITS = SandboxLimits(memory_mb=4096, timeout_s=300, task="calibrating this machine", settings="")


def calibrated(site: Site, calibrating: Calibrating) -> Calibration:
    """This machine's calibration: the kept one, if its processor, its cores and the libraries are as they were.

    A whole calibration also answers for a quick one, but not the reverse.

    Raises:
        NotConfined: the kernel refuses a mechanism that the site does not waive.
        SandboxLimit: measuring takes too much memory or time.
    """
    hardware = this_hardware()
    kept = None if calibrating.force else known(site, hardware)
    if kept is not None and (calibrating.quick or not kept.quick):
        return kept
    calibration = measured(site, quick=calibrating.quick)
    keep(site, hardware, calibration)
    return calibration


def measured(site: Site, *, quick: bool) -> Calibration:
    """Measures this machine's CPU.

    Raises:
        NotConfined: the kernel refuses a mechanism that the site does not waive.
        SandboxLimit: it takes more than 4 GiB or five minutes.
    """
    machine, cores = this_machine(), usable_cores()
    target = detect(machine)[0]
    cases = cases_for(target, cores, quick=quick)
    started, before = time.monotonic(), others_s()
    with workplace(_PROBE, Path(site.home), site.sandbox) as place:
        order = {
            "work": str(place.sandbox.work),
            "cases": cases.model_dump(mode="json"),
            "target": target.model_dump(mode="json"),
        }
        found, _ = place.sandbox.run(order, _LIMITS)
    seconds, after = time.monotonic() - started, others_s()
    used = 0.0 if before is None or after is None else (after - before) / seconds
    return Calibration(
        processor=cpu_name(),
        architecture=machine.architecture,
        features=(target.accelerator, *features_of(machine)),
        capabilities=tuple(found["capabilities"]),
        cores=cores,
        cpu_share=cpu_share(),
        versions=versions(),
        rates=tuple(Rate.model_validate(rate) for rate in found["rates"]),
        unavailable=tuple(Unavailable.model_validate(each) for each in found["unavailable"]),
        quick=quick,
        seconds=round(seconds, 1),
        disturbed_cores=harmful(used, cores),
        measured_at=time.time(),
    )
