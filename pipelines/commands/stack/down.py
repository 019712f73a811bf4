"""`shiplift down`."""

from shiplift.pipelines.commands import edge


def down() -> None:
    """Stop the embedded stack. State stays; a release under way goes on at the next start. Example: `shiplift down`"""
    from shiplift.pipelines.engines.local import stack

    if not stack.down(edge.home(), edge.say):
        edge.say("nothing was running")
