"""Class numbers from synsets and published lists."""
