"""`python -m shiplift.pipelines.daemons.operator`, a pod's command."""

from shiplift.pipelines.daemons.operator.process import main
from shiplift.runtime.base.daemon import run_main

if __name__ == "__main__":
    run_main(main)
