"""The world a step works in, and what stays running after it. Imports no step and no pipeline."""

import os

# gRPC's handler of forks waits for its own threads, now and then for ever, and processes are started while others ask
# Triton. No child of a process that uses gRPC does so itself before it runs another program, so none needs the handler.
# gRPC reads this when it is first imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
