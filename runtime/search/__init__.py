"""The search for a serving configuration: the candidates, their utility, and where they are measured."""
