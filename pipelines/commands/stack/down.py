"""`shiplift down`."""

from shiplift.pipelines.commands import edge


def down() -> None:
    """Stop the embedded stack. State is kept; a release under way resumes at the next `up`. Example: `shiplift down`"""
    from shiplift.pipelines.engines.local import stack

    if not stack.down(edge.home(), edge.say):
        edge.say("nothing was running")
