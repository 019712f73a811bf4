"""`python -m shiplift.pipelines.daemons.operator`, the command of the operator's pods."""

from shiplift.pipelines.daemons.operator.process import main
from shiplift.runtime.base.daemon import run_main

if __name__ == "__main__":
    run_main(main)
