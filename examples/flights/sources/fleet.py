"""What the aircraft were."""

from persist_assets import table


@table(
    refresh="snapshot",
    key="tailnum",
    owner="team:fleet",
    check={"unique": ["tailnum", "valid_from"]},
)
def planes_as_they_were(planes):
    """Each aircraft, from when until when it was so: they are refitted, and some are sold."""
    return planes.select("tailnum", "manufacturer", "model", "engines", "seats")
