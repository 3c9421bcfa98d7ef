"""Looking into the replay of a run, and entering any moment that is stored there."""


class InspectionError(Exception):
    """What cannot be looked at or entered: why, and what to do instead."""
