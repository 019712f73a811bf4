"""`python -m shiplift.pipelines.daemons.activator`, the command of the activator's pods."""

from shiplift.pipelines.daemons.activator.servers import main
from shiplift.runtime.base.daemon import run_main

if __name__ == "__main__":
    run_main(main)
