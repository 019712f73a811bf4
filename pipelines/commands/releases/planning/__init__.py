"""`shiplift pipeline plan`: what it gathers, and how a plan is shown."""
